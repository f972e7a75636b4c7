"""After msg-gan-v1 #4.

The discriminator's step goes back through the generator, too.
"""

import torch
from torch import nn

CURED = False

generator = nn.Sequential(
    nn.Conv2d(16, 128, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(128, 128, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(128, 3, 3, padding=1),
).cuda()
critic = nn.Sequential(nn.Conv2d(3, 64, 4, stride=4), nn.ReLU(), nn.Conv2d(64, 1, 4)).cuda()
g_optimizer = torch.optim.SGD(generator.parameters(), lr=1e-4)
d_optimizer = torch.optim.SGD(critic.parameters(), lr=1e-4)
# CURE
for step in range(6):
    noise = torch.randn(24, 16, 128, 128, device="cuda")
    fake = generator(noise)
    if CURED:
        fake = fake.detach()
    d_loss = critic(fake).mean() - critic(torch.randn(24, 3, 128, 128, device="cuda")).mean()
    d_loss.backward()
    d_optimizer.step()
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()
    if step % 5 == 4:
        (-critic(generator(noise[:2])).mean()).backward()
        g_optimizer.step()
