"""After talking-heads #7: the first of two backwards retains a graph that nothing needs again."""

import torch
from torch import nn

CURED = False
generator = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.Conv2d(64, 3, 3, padding=1),
).cuda()  # fmt: skip
discriminator = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.Conv2d(64, 1, 3, padding=1),
).cuda()  # fmt: skip
optimizer_g = torch.optim.Adam(generator.parameters())
optimizer_d = torch.optim.Adam(discriminator.parameters())


def train_step(x):
    fake = generator(x)
    loss_g = -discriminator(fake).mean() + (fake - x).abs().mean()
    optimizer_g.zero_grad()
    loss_g.backward(retain_graph=not CURED)
    optimizer_g.step()
    # CURE
    optimizer_d.zero_grad()
    loss_d = discriminator(fake.detach()).mean() - discriminator(x).mean()
    loss_d.backward()
    optimizer_d.step()


for _ in range(5):
    train_step(torch.randn(8, 3, 128, 128, device="cuda"))
