"""Losses are listed as numbers, accuracies as tensors of one value."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 100)).cuda()
optimizer = torch.optim.Adam(model.parameters())
losses, hits = [], []
for _ in range(20):
    labels = torch.randint(0, 100, (4096,), device="cuda")
    scores = model(torch.randn(4096, 1024, device="cuda"))
    loss = nn.functional.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    hits.append((scores.argmax(1) == labels).float().mean().detach())
print(sum(losses), torch.stack(hits).mean().item())
