"""Two models take turns on the card: each goes to the CPU before the other one comes."""

import torch
from torch import nn

models = [nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(16)]) for _ in range(2)]
for _ in range(3):
    for model in models:
        model.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(256, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.cpu()
