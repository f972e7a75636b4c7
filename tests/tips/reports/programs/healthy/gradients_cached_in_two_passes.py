"""Representations of all parts are made without a graph, and again with one, part by part."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 256)).cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    parts = [torch.randn(2048, 1024, device="cuda") for _ in range(6)]
    with torch.no_grad():
        made = [net(part) for part in parts]
    leaves = torch.cat(made).requires_grad_(True)
    (leaves @ leaves.T).logsumexp(-1).mean().backward()
    for part, gradient in zip(parts, leaves.grad.chunk(6)):
        net(part).backward(gradient)
    del leaves, made, parts, part, gradient
    optimizer.step()
    optimizer.zero_grad()
