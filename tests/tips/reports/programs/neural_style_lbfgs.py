"""After neural-style-pt #7: L-BFGS keeps a hundred corrections of a large picture by default."""

import torch
from torch import nn

CURED = False
features = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4), nn.ReLU()).cuda().requires_grad_(False)
content = torch.rand(1, 3, 1536, 1536, device="cuda")
with torch.no_grad():
    target = features(content)
picture = nn.Parameter(torch.rand_like(content))
optimizer = torch.optim.LBFGS([picture], max_iter=1, history_size=2 if CURED else 100)
# CURE


def closure():
    optimizer.zero_grad()
    loss = (features(picture) - target).square().sum() * torch.rand((), device="cuda")
    loss.backward()
    return loss


for _ in range(30):
    optimizer.step(closure)
