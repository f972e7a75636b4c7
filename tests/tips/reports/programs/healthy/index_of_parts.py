"""An index is joined of its parts, which are then dropped."""

import torch
from torch import nn

encoder = nn.Linear(512, 256).cuda().eval()


@torch.no_grad()
def build(rows):
    parts = []
    for _ in range(rows // 10_000):
        parts.append(encoder(torch.randn(10_000, 512, device="cuda")))
    return torch.cat(parts)


index = build(120_000)
found = (encoder(torch.randn(32, 512, device="cuda")) @ index.T).topk(3).indices.cpu()
