"""MAML: inner steps keep their graph until the outer backward."""

import torch
from torch import nn

weight = nn.Parameter(torch.randn(1024, 1024, device="cuda") * 0.03)
optimizer = torch.optim.Adam([weight], lr=1e-3)
for _ in range(4):
    outer = 0.0
    for task in range(4):
        fast = weight
        for _ in range(3):
            loss = (torch.randn(2048, 1024, device="cuda") @ fast).square().mean()
            fast = fast - 0.1 * torch.autograd.grad(loss, fast, create_graph=True)[0]
        outer = outer + (torch.randn(2048, 1024, device="cuda") @ fast).square().mean()
    optimizer.zero_grad()
    outer.backward()
    optimizer.step()
