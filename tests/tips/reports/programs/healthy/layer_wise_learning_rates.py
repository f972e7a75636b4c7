"""Each block has its own optimizer, and all of them step in every iteration."""

import torch
from torch import nn

blocks = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(6)]).cuda()
optimizers = [torch.optim.Adam(b.parameters(), lr=1e-4 * i) for i, b in enumerate(blocks, 1)]
for _ in range(4):
    blocks(torch.randn(1024, 2048, device="cuda")).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
