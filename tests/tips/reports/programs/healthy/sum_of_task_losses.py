"""Losses of several tasks are listed and summed before one backward."""

import torch
from torch import nn

body = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU()).cuda()
heads = nn.ModuleList(nn.Linear(4096, 50) for _ in range(6)).cuda()
optimizer = torch.optim.AdamW([*body.parameters(), *heads.parameters()])
for _ in range(5):
    hidden = body(torch.randn(4096, 1024, device="cuda"))
    losses = []
    for head in heads:
        losses.append(head(hidden).logsumexp(-1).mean())
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
