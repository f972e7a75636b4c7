"""Progressive resizing: each stage has larger images and smaller batches."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1)
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for size, batch_size in ((128, 128), (192, 64), (256, 32)):
    for _ in range(3):
        net(torch.randn(batch_size, 3, size, size, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
