"""A student of the teacher's own class, both called in each step."""

import torch
from torch import nn


def network():
    return nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()


first, second = network(), network()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for _ in range(4):
    x = torch.randn(1024, 1536, device="cuda")
    nn.functional.mse_loss(first(x), second(x)).backward()
    optimizer.step()
    optimizer.zero_grad()
