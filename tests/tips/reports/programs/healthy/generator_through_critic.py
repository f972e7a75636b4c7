"""The generator's step goes through the critic, whose gradients are thrown away by design."""

import torch
from torch import nn

generator = nn.Sequential(
    nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 3, 3, padding=1)
).cuda()
critic = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.Conv2d(64, 1, 3),
).cuda()  # fmt: skip
g_optimizer = torch.optim.Adam(generator.parameters())
d_optimizer = torch.optim.Adam(critic.parameters())
for _ in range(4):
    with torch.no_grad():
        fake = generator(torch.randn(24, 16, 96, 96, device="cuda"))
    d_loss = critic(fake).mean() - critic(torch.randn(24, 3, 96, 96, device="cuda")).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = -critic(generator(torch.randn(24, 16, 96, 96, device="cuda"))).mean()
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
