"""After a report on RT-DETR: a cached method keeps each model that was used."""

from functools import lru_cache

import torch
from torch import nn

CURED = False


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))

    def positions(self, width, height):
        return torch.arange(width * height, device="cuda").float()

    if not CURED:
        positions = lru_cache(maxsize=32)(positions)

    def forward(self, x):
        return self.body(x) + self.positions(32, 64)


for _ in range(4):
    model = Detector().cuda().eval()
    with torch.no_grad():
        model(torch.randn(8, 2048, device="cuda"))
    del model
# CURE
