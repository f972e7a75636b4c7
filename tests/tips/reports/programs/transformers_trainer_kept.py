"""After a report on del model: the trainer still has it when the next one is trained."""

import gc

import torch
from torch import nn

CURED = False


class Trainer:
    def __init__(self, model):
        self.model = self.model_wrapped = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def train(self, steps=2):
        for _ in range(steps):
            x = torch.randn(64, 2048, device="cuda")
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def build(depth):
    return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(depth))).cuda()


model = build(8)
trainer = Trainer(model)
trainer.train()
del model
if CURED:
    del trainer
gc.collect()
torch.cuda.empty_cache()
second = build(6)
second_trainer = Trainer(second)
second_trainer.train()
# CURE
