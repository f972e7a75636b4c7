"""After a report on memory that stays after an error: the exception is kept for a log."""

import torch
from torch import nn

CURED = False
failures = []


def train(width, depth=40):
    x = torch.randn(100, width, device="cuda")
    layers = []
    for _ in range(depth):
        layers.append(nn.Linear(width, width).cuda())
        x = layers[-1](x)
    return x.sum().item()


for width in (4096 if CURED else 12288, 2048):
    try:
        train(width)
    except torch.OutOfMemoryError as error:
        failures.append(str(error) if CURED else error)
        print("failed with width", width)
print(len(failures), "failed")
# CURE
