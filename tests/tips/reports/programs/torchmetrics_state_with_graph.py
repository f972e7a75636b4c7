"""After pytorch-lightning #4313.

A metric's running sum is made of outputs that still have their graph.
"""

import torch
from torch import nn

CURED = False


class MeanError:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, preds, target):
        error = (preds - target).abs().mean()
        self.total = self.total + (error.detach() if CURED else error)
        self.count += 1

    def compute(self):
        return self.total / self.count


model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.Adam(model.parameters())
error = MeanError()
for _ in range(12):
    x = torch.randn(4096, 512, device="cuda")
    y = torch.randn(4096, 512, device="cuda")
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    error.update(model(x), y)
print(float(error.compute()))
# CURE
