"""Progressive growing: a block is added to the net at each stage."""

import torch
from torch import nn

net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1)).cuda()
for stage in range(5):
    net.append(nn.Sequential(nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)).cuda())
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        net(torch.randn(8, 3, 128, 128, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
