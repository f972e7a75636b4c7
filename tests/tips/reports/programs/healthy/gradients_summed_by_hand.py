"""Gradients of several tasks are kept in lists, combined and applied."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
weights = list(model.parameters())
optimizer = torch.optim.SGD(weights, lr=0.1)
for _ in range(4):
    gradients = []
    for task in range(3):
        loss = model(torch.randn(1024, 1024, device="cuda")).square().mean()
        gradients.append(torch.autograd.grad(loss, weights))
    for p, *parts in zip(weights, *gradients):
        p.grad = sum(parts) / 3
    optimizer.step()
    optimizer.zero_grad()
