"""A perturbation is trained against a frozen net: its graph is needed for the picture's gradient."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 96, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 100),
).cuda().eval().requires_grad_(False)  # fmt: skip
for _ in range(3):
    pictures = torch.randn(32, 3, 128, 128, device="cuda", requires_grad=True)
    for _ in range(4):
        loss = net(pictures).logsumexp(-1).mean()
        (gradient,) = torch.autograd.grad(loss, pictures)
        pictures = (pictures + 0.01 * gradient.sign()).detach().requires_grad_(True)
