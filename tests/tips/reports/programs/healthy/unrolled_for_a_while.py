"""Truncated backpropagation: sixteen states are kept, used and released."""

import torch
from torch import nn

cell = nn.GRUCell(1024, 1024).cuda()
optimizer = torch.optim.Adam(cell.parameters())
hidden = torch.zeros(1024, 1024, device="cuda")
for chunk in range(4):
    states = []
    for _ in range(16):
        hidden = cell(torch.randn(1024, 1024, device="cuda"), hidden)
        states.append(hidden)
    optimizer.zero_grad()
    torch.stack(states).square().mean().backward()
    optimizer.step()
    hidden = hidden.detach()
