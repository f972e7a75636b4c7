"""Six views of each picture are embedded one after the other, and compared with all others."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 5, stride=2), nn.ReLU(), nn.Conv2d(64, 128, 5, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 64),
).cuda()  # fmt: skip
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    views = [net(torch.randn(64, 3, 128, 128, device="cuda")) for _ in range(6)]
    flat = nn.functional.normalize(torch.cat(views), dim=-1)
    (flat @ flat.T).logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
