"""Attention by scaled_dot_product_attention over long sequences."""

import torch
from torch import nn

qkv = nn.Linear(512, 1536).half().cuda()
optimizer = torch.optim.SGD(qkv.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(4, 4096, 512, device="cuda", dtype=torch.float16)
    q, k, v = qkv(x).view(4, 4096, 3, 8, 64).permute(2, 0, 3, 1, 4)
    nn.functional.scaled_dot_product_attention(q, k, v).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
