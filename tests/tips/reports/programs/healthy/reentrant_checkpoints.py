"""The older, reentrant form of checkpointing."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(10)).cuda()
optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(8192, 1024, device="cuda", requires_grad=True)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
