"""A graph net is trained on the whole graph in each epoch."""

import torch
from torch import nn

features = torch.randn(100_000, 128, device="cuda")
edges = torch.randint(0, 100_000, (2, 500_000), device="cuda")
weights = nn.Linear(128, 64).cuda()
optimizer = torch.optim.Adam(weights.parameters())
for epoch in range(5):
    hidden = weights(features)
    spread = torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]])
    loss = spread.logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
