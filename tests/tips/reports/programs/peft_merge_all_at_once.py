"""After peft #1939.

Merging adapters makes the deltas of all layers before it adds the first.
"""

import torch
from torch import nn

CURED = False


class LoraLinear(nn.Module):
    def __init__(self, width, rank=16):
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).half()
        self.down = nn.Parameter(torch.randn(rank, width))
        self.up = nn.Parameter(torch.randn(width, rank))

    def delta(self):
        return self.up @ self.down


model = nn.ModuleList(LoraLinear(2560) for _ in range(40)).cuda()
# CURE
with torch.no_grad():
    if CURED:
        for layer in model:
            layer.base.weight += layer.delta().half()
    else:
        deltas = [layer.delta() for layer in model]
        for layer, delta in zip(model, deltas):
            layer.base.weight += delta.half()
        del deltas, delta
merged = nn.Sequential(*[layer.base for layer in model])
with torch.no_grad():
    merged(torch.randn(16, 2560, device="cuda", dtype=torch.float16))
