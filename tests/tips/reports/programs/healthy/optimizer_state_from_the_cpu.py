"""A training goes on from a checkpoint that was loaded to the CPU and is dropped."""

import io

import torch
from torch import nn


def build():
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)]).cuda()
    return net, torch.optim.AdamW(net.parameters())


def train(net, optimizer, steps=2):
    for _ in range(steps):
        net(torch.randn(64, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


net, optimizer = build()
train(net, optimizer)
file = io.BytesIO()
torch.save([net.state_dict(), optimizer.state_dict()], file)
del net, optimizer
file.seek(0)
net, optimizer = build()
weights, state = torch.load(file, map_location="cpu")
net.load_state_dict(weights)
optimizer.load_state_dict(state)
del weights, state
train(net, optimizer)
