"""Two frozen towers make embeddings without a graph, and a small head joins them."""

import torch
from torch import nn


def tower(width):
    parts = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(8)]
    return nn.Sequential(*parts).cuda().eval().requires_grad_(False)


image, text, head = tower(1024), tower(768), nn.Linear(1792, 256).cuda()
optimizer = torch.optim.Adam(head.parameters())
for _ in range(4):
    both = [
        image(torch.randn(2048, 1024, device="cuda")), text(torch.randn(2048, 768, device="cuda"))
    ]  # fmt: skip
    head(torch.cat(both, -1)).logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
