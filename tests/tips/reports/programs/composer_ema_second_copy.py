"""After composer #1941: averaging keeps a whole model and a copy of the training weights."""

import copy

import torch
from torch import nn

CURED = False


class Ema:
    def __init__(self, model):
        self.ema_model = copy.deepcopy(model)
        self.training_model = None if CURED else copy.deepcopy(model)

    def update(self, model):
        with torch.no_grad():
            for mean, new in zip(self.ema_model.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.01)

    def swap(self, model):
        for mean, new in zip(self.ema_model.parameters(), model.parameters(), strict=True):
            mean.data, new.data = new.data, mean.data

    def evaluate(self, model, batch):
        if self.training_model is None:
            self.swap(model)
        else:
            self.training_model.load_state_dict(model.state_dict())
            model.load_state_dict(self.ema_model.state_dict())
        with torch.no_grad():
            model(batch)
        if self.training_model is None:
            self.swap(model)
        else:
            model.load_state_dict(self.training_model.state_dict())


model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(20)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
algorithm = Ema(model)
for step in range(6):
    model(torch.randn(32, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    algorithm.update(model)
    if step % 3 == 2:
        algorithm.evaluate(model, torch.randn(32, 2048, device="cuda"))
