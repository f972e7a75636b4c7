"""A cache of the results of a pure function, with a limit."""

from functools import lru_cache

import torch
from torch import nn


@lru_cache(maxsize=4)
def positions(length):
    return torch.arange(length, device="cuda").float()[:, None] * torch.ones(512, device="cuda")


layer = nn.Linear(512, 512).cuda().eval()
with torch.no_grad():
    for length in (4096, 8192, 4096, 2048, 8192, 1024, 16384, 4096, 512, 8192):
        layer(torch.randn(length, 512, device="cuda") + positions(length)).mean().item()
