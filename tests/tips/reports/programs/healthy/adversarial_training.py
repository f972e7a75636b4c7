"""Adversarial examples are made in an inner loop, then trained on."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(2048, 3072, device="cuda")
    y = torch.randint(0, 10, (2048,), device="cuda")
    shift = torch.zeros_like(x, requires_grad=True)
    for _ in range(4):
        loss = nn.functional.cross_entropy(net(x + shift), y)
        slope = torch.autograd.grad(loss, shift)[0]
        shift = (shift + 0.01 * slope.sign()).detach().requires_grad_(True)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x + shift.detach()), y).backward()
    optimizer.step()
