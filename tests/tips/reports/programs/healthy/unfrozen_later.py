"""A backbone is frozen for an epoch and trained in the next."""

import torch
from torch import nn

backbone = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
head = nn.Linear(1536, 100).cuda()
backbone.requires_grad_(False)
for epoch in range(2):
    if epoch == 1:
        backbone.requires_grad_(True)
    trained = [p for p in [*backbone.parameters(), *head.parameters()] if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for _ in range(4):
        optimizer.zero_grad()
        head(backbone(torch.randn(1024, 1536, device="cuda"))).logsumexp(-1).mean().backward()
        optimizer.step()
