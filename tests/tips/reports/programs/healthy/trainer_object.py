"""A trainer object that keeps its last batch, output and loss."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.history = []

    def step(self):
        self.batch = torch.randn(4096, 1024, device="cuda")
        self.output = self.model(self.batch)
        self.loss = self.output.square().mean()
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.history.append(float(self.loss))


trainer = Trainer(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda())
for _ in range(8):
    trainer.step()
