"""Each stage learns what the stages before it left over."""

import torch
from torch import nn

stages = []
x, y = torch.randn(8192, 512, device="cuda"), torch.randn(8192, 64, device="cuda")
for _ in range(5):
    with torch.no_grad():
        left = y - sum(stage(x) for stage in stages)
    stage = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 64)).cuda()
    optimizer = torch.optim.Adam(stage.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(stage(x), left).backward()
        optimizer.step()
    stages.append(stage.requires_grad_(False))
