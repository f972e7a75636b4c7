"""After stylegan2_pytorch #11.

Terms of the loss are logged with their graphs, and only some are used.
"""

import torch
from torch import nn

CURED = False


class Stats:
    def __init__(self):
        self.values = {"loss": [], "penalty": []}

    def add(self, name, value):
        self.values[name].append(value.item() if CURED else value)


judge = nn.Sequential(
    nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
).cuda()
optimizer = torch.optim.Adam(judge.parameters())
stats = Stats()
for step in range(8):
    real = torch.randn(16, 3, 128, 128, device="cuda")
    loss = judge(real).mean()
    penalty = judge(real + 0.1).square().mean()
    stats.add("loss", loss)
    stats.add("penalty", penalty)
    total = loss + penalty if step % 16 == 15 else loss
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
# CURE
