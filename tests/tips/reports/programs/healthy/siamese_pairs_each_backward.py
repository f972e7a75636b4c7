"""Four pairs of a batch go back one after the other: the gradients add up."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 256)).cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    for _ in range(4):
        left = net(torch.randn(2048, 784, device="cuda"))
        right = net(torch.randn(2048, 784, device="cuda"))
        (left - right).square().sum(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
