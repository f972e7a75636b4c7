"""What the last step had is released before an evaluation in larger batches."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def step():
    features = net(torch.randn(32, 3, 128, 128, device="cuda"))
    features.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(2):
    for _ in range(3):
        step()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(64, 3, 128, 128, device="cuda")).mean().item()
