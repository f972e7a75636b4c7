"""After accelerate #84.

One accelerator trains several models and keeps each optimizer it saw.
"""

import torch
from torch import nn

CURED = False


class Accelerator:
    def __init__(self):
        self.optimizers = []

    def prepare(self, model, optimizer):
        if CURED:
            self.optimizers.clear()
        self.optimizers.append(optimizer)
        return model.cuda(), optimizer


def train(accelerator, width):
    model = nn.Sequential(nn.Linear(1024, width), nn.ReLU(), nn.Linear(width, 1024)).cuda()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for _ in range(4):
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


accelerator = Accelerator()
scores = {}
for width in (8192, 8192, 8192, 8192):
    scores[len(scores)] = train(accelerator, width)
# CURE
