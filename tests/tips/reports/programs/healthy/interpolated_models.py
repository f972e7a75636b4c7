"""Weights of two trained models are averaged on the CPU, and one model is evaluated with them."""

import torch
from torch import nn


def trained():
    net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        net(torch.randn(512, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: weight.cpu() for name, weight in net.state_dict().items()}


one, two = trained(), trained()
net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
with torch.no_grad():
    for share in (0.25, 0.5, 0.75):
        net.load_state_dict({name: torch.lerp(one[name], two[name], share) for name in one})
        net(torch.randn(512, 1024, device="cuda"))
