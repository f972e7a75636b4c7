"""After pytorch-lightning #5735.

The loop keeps the outputs of its last validation while it trains on.
"""

import torch
from torch import nn

CURED = False


class Loop:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.outputs = []

    def train_epoch(self):
        for _ in range(4):
            images = torch.randn(256, 3, 64, 64, device="cuda")
            self.model(images).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def validate(self):
        self.outputs = []
        with torch.no_grad():
            for _ in range(12):
                images = torch.randn(256, 3, 64, 64, device="cuda")
                self.outputs.append({"masks": self.model(images)})
        score = sum(float(output["masks"].mean()) for output in self.outputs)
        if CURED:
            self.outputs = []
        return score


loop = Loop(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 1)).cuda())
for _ in range(2):
    loop.train_epoch()
    loop.validate()
loop.train_epoch()
# CURE
