"""Gradients of two losses are compared before the sum goes back through the same graph."""

import torch
from torch import nn

body = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
heads = nn.ModuleList(nn.Linear(1024, 10) for _ in range(2)).cuda()
optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()])
for _ in range(4):
    hidden = body(torch.randn(4096, 1024, device="cuda"))
    losses = [head(hidden).logsumexp(-1).mean() for head in heads]
    shared = body[2].weight
    norms = [torch.autograd.grad(loss, shared, retain_graph=True)[0].norm() for loss in losses]
    sum(loss / norm.detach() for loss, norm in zip(losses, norms)).backward()
    optimizer.step()
    optimizer.zero_grad()
