"""After DeepSpeed #5496.

Methods bound to parameters make circles that outlive the model.
"""

import types

import torch
from torch import nn

CURED = False


def full_precision(self):
    return self.float()


def link(model):
    for parameter in model.parameters():
        parameter.full_precision = types.MethodType(full_precision, parameter)


def unlink(model):
    for parameter in model.parameters():
        del parameter.full_precision


for _ in range(3):
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)]).cuda()
    link(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(64, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if CURED:
        unlink(model)
    del model, optimizer
# CURE
