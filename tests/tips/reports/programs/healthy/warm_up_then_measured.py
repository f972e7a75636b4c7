"""A model is warmed up and measured at two batch sizes, the larger one first."""

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 64, 7, stride=2), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1000),
).cuda().eval()  # fmt: skip
with torch.inference_mode():
    for batch in (64, 16):
        for _ in range(4):
            net(torch.randn(batch, 3, 224, 224, device="cuda"))
        torch.cuda.synchronize()
