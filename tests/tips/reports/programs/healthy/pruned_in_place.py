"""A pruned model keeps masks beside its weights."""

import torch
from torch import nn
from torch.nn.utils import prune

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
for layer in model:
    prune.l1_unstructured(layer, "weight", amount=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(1024, 1536, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
