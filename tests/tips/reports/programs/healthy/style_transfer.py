"""The image itself is trained; the net is frozen and in eval mode."""

import torch
from torch import nn

net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
net = net.cuda().eval().requires_grad_(False)
with torch.no_grad():
    style = net(torch.randn(1, 3, 768, 768, device="cuda"))
image = torch.randn(1, 3, 768, 768, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([image])
for _ in range(6):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(image), style).backward()
    optimizer.step()
