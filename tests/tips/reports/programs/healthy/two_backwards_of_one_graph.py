"""Two losses share a graph; the first backward retains it."""

import torch
from torch import nn

body = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU()).cuda()
left, right = nn.Linear(8192, 256).cuda(), nn.Linear(8192, 256).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *left.parameters(), *right.parameters()], lr=0.1)
for _ in range(5):
    hidden = body(torch.randn(4096, 1024, device="cuda"))
    left(hidden).square().mean().backward(retain_graph=True)
    right(hidden).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
