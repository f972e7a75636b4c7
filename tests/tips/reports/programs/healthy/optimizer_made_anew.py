"""A new optimizer for each phase of training; the old one goes."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(10)]).cuda()
for rate in (1e-3, 1e-4, 1e-5):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(3):
        model(torch.randn(512, 1536, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
