"""A pool of its own for the activations of an encoder."""

import torch
from torch import nn

pool = torch.cuda.MemPool()
encoder = nn.Linear(2048, 2048).cuda().eval()
with torch.no_grad():
    for _ in range(4):
        x = torch.randn(4096, 2048, device="cuda")
        with torch.cuda.use_mem_pool(pool):
            y = encoder(x)
        y = y.mean().item()
