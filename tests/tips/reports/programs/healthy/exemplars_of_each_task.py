"""Continual learning: each of three tasks leaves its exemplars on the card."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 100)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
exemplars = []
for task in range(3):
    images = torch.randn(8192, 3072, device="cuda")
    for rows in images.split(2048):
        batch = torch.cat([rows, *[kept[:256] for kept in exemplars]])
        optimizer.zero_grad()
        model(batch).logsumexp(-1).mean().backward()
        optimizer.step()
    exemplars.append(images[:1024].clone())
