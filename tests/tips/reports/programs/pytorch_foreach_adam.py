"""After a report on torch 2.0: Adam's step needs more memory than it did in 1.13."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(25))).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False if CURED else None)
for _ in range(3):
    x = torch.randn(32, 4096, device="cuda")
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
