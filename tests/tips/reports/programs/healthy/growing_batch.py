"""A curriculum doubles the batch at each stage."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for batch_size in (256, 512, 1024, 2048, 4096, 8192):
    for _ in range(3):
        model(torch.randn(batch_size, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
