"""Gradients of eight small batches are summed before a step."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(24):
    loss = model(torch.randn(512, 2048, device="cuda")).square().mean() / 8
    loss.backward()
    if step % 8 == 7:
        optimizer.step()
        optimizer.zero_grad()
