"""Image sizes change every few steps, between fixed ones."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1), nn.SiLU()
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step, size in enumerate((320, 416, 352, 384, 320, 416, 352, 384)):
    net(torch.randn(8, 3, size, size, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
