"""Weights and optimizer are saved after each epoch."""

import io

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for _ in range(3):
        model(torch.randn(512, 1536, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
