"""After pytorch-lightning #7089.

The averaged model is a deep copy of the module, with the data it carries.
"""

import copy

import torch
from torch import nn

CURED = False


class Lit(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 10))
        self.train_images = torch.randn(60000, 3072, device="cuda")

    def forward(self, rows):
        return self.net(self.train_images[rows])


lit = Lit().cuda()
averaged = copy.deepcopy(lit.net if CURED else lit)
# CURE
optimizer = torch.optim.SGD(lit.parameters(), lr=0.1)
for step in range(4):
    rows = torch.arange(step * 512, (step + 1) * 512, device="cuda")
    lit(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    source = lit.net if CURED else lit
    with torch.no_grad():
        for kept, now in zip(averaged.parameters(), source.parameters()):
            kept.lerp_(now, 0.1)
