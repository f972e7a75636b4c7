"""Gradients of the input in eval mode, weights not frozen."""

import torch
from torch import nn

net = (
    nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    .cuda()
    .eval()
)
maps = []
for _ in range(5):
    image = torch.randn(8, 3, 224, 224, device="cuda", requires_grad=True)
    score = net(image).amax(1).sum()
    maps.append(torch.autograd.grad(score, image)[0].abs().amax(1).cpu())
