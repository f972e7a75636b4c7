"""A step that does not fit is caught and taken in halves."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 64, 3, padding=1)
).cuda()


def step(images):
    net(images).square().mean().backward()


def safe_step(images):
    try:
        step(images)
    except torch.cuda.OutOfMemoryError:
        net.zero_grad()
        for half in images.chunk(4):
            step(half)


for _ in range(2):
    safe_step(torch.randn(1536, 3, 128, 128, device="cuda"))
    net.zero_grad()
