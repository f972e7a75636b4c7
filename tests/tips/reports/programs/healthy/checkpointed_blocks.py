"""Blocks under activation checkpointing."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(8)
).cuda()
optimizer = torch.optim.AdamW(blocks.parameters())
for _ in range(4):
    x = torch.randn(8192, 1024, device="cuda")
    for block in blocks:
        x = x + checkpoint(block, x, use_reentrant=False)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
