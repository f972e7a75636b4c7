"""Slow weights in a list that every fifth step moves."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
slow = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    model(torch.randn(1024, 1536, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 4:
        with torch.no_grad():
            for s, p in zip(slow, model.parameters()):
                p.copy_(s.lerp_(p, 0.5))
