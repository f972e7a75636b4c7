"""Batches are put on the card in the first epoch and used from there in the others."""

import torch
from torch import nn

loaded = {}


def batch(number):
    if number not in loaded:
        loaded[number] = torch.randn(2048, 2048).cuda()
    return loaded[number]


model = nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for number in range(8):
        model(batch(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
