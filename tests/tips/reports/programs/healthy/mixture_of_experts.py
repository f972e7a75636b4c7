"""A mixture of experts in which all take part."""

import torch
from torch import nn

gate = nn.Linear(1024, 8).cuda()
experts = nn.ModuleList(
    nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 1024)) for _ in range(8)
).cuda()
optimizer = torch.optim.AdamW([*gate.parameters(), *experts.parameters()])
for _ in range(4):
    x = torch.randn(2048, 1024, device="cuda")
    weights = gate(x).softmax(-1)
    y = sum(weights[:, [i]] * expert(x) for i, expert in enumerate(experts))
    y.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
