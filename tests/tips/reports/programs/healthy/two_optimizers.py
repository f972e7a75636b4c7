"""Two optimizers for two parts of one model."""

import torch
from torch import nn

backbone = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
head = nn.Linear(1536, 5000).cuda()
slow = torch.optim.AdamW(backbone.parameters(), lr=1e-5)
fast = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
for _ in range(5):
    loss = head(backbone(torch.randn(1024, 1536, device="cuda"))).logsumexp(-1).mean()
    slow.zero_grad()
    fast.zero_grad()
    loss.backward()
    slow.step()
    fast.step()
