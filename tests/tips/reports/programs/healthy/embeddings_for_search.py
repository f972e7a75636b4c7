"""An index of embeddings that was sized before it is filled."""

import torch
from torch import nn

encoder = nn.Linear(1024, 512).cuda().eval()
index = torch.empty(100_000, 512, device="cuda")
with torch.no_grad():
    for start in range(0, 100_000, 10_000):
        index[start : start + 10_000] = encoder(torch.randn(10_000, 1024, device="cuda"))
    for _ in range(3):
        query = encoder(torch.randn(64, 1024, device="cuda"))
        best = (query @ index.T).topk(5).indices.cpu()
