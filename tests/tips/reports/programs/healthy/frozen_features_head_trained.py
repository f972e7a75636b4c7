"""A frozen backbone makes features without a graph, and only the head is trained."""

import torch
from torch import nn

backbone = nn.Sequential(
    nn.Conv2d(3, 64, 7, stride=2), nn.ReLU(), nn.Conv2d(64, 256, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(),
).cuda().eval().requires_grad_(False)  # fmt: skip
head = nn.Linear(256, 1000).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(4):
    features = backbone(torch.randn(64, 3, 192, 192, device="cuda"))
    head(features).logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
