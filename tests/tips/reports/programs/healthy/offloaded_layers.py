"""Layers lie on the CPU and visit the card one at a time."""

import torch
from torch import nn

layers = [nn.Linear(4096, 4096) for _ in range(6)]
with torch.no_grad():
    for _ in range(2):
        x = torch.randn(256, 4096, device="cuda")
        for layer in layers:
            layer.cuda()
            x = layer(x).relu()
            layer.cpu()
        answer = x.cpu()
