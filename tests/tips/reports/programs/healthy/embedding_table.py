"""A large embedding table with sparse gradients."""

import torch
from torch import nn

table = nn.Embedding(1_000_000, 128, sparse=True).cuda()
head = nn.Linear(128, 1).cuda()
sparse = torch.optim.SparseAdam(table.parameters())
dense = torch.optim.Adam(head.parameters())
for _ in range(5):
    ids = torch.randint(0, 1_000_000, (8192,), device="cuda")
    head(table(ids)).square().mean().backward()
    sparse.step()
    dense.step()
    sparse.zero_grad()
    dense.zero_grad()
