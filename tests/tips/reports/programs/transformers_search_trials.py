"""After transformers #13019: each trial of a search builds its model while the last one lives."""

import gc

import torch
from torch import nn

CURED = False


class Trainer:
    def __init__(self, model_init):
        self.model_init = model_init
        self.model = None
        self.optimizer = None

    def train(self, trial):
        if CURED:
            self.model = self.optimizer = None
            gc.collect()
        self.model = self.model_init(trial)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=trial["lr"])
        for _ in range(4):
            x = torch.randn(16, 2048, device="cuda")
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def model_init(trial):
    return nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(trial["layers"])]).cuda()


trainer = Trainer(model_init)
for trial in ({"lr": 1e-4, "layers": 20}, {"lr": 1e-3, "layers": 20}, {"lr": 1e-5, "layers": 20}):
    trainer.train(trial)
# CURE
