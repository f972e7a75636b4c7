"""Stochastic weight averaging by torch's own class."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = SWALR(optimizer, swa_lr=0.05)
for epoch in range(4):
    model(torch.randn(1024, 1536, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    averaged.update_parameters(model)
    schedule.step()
with torch.no_grad():
    averaged(torch.randn(1024, 1536, device="cuda"))
