"""Images are augmented on the card and trained on."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1)
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    images = torch.randn(16, 3, 256, 256, device="cuda")
    with torch.no_grad():
        images = images.flip(3) * 0.9 + 0.1 * torch.randn_like(images)
        mixed = 0.5 * images + 0.5 * images.roll(1, 0)
    net(mixed).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
