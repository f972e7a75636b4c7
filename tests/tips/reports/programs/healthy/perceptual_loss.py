"""A frozen net that a loss goes back through, and a target without gradients."""

import torch
from torch import nn

frozen = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
frozen = frozen.cuda().eval().requires_grad_(False)
painter = nn.Conv2d(3, 3, 5, padding=2).cuda()
optimizer = torch.optim.Adam(painter.parameters())
for _ in range(4):
    image = torch.randn(8, 3, 256, 256, device="cuda")
    with torch.no_grad():
        wanted = frozen(image)
    nn.functional.mse_loss(frozen(painter(image)), wanted).backward()
    optimizer.step()
    optimizer.zero_grad()
