"""A decoder's losses are summed, since each word's graph goes through the state before it."""

import torch
from torch import nn

cell, words = nn.GRUCell(512, 1024).cuda(), nn.Linear(1024, 8000).cuda()
optimizer = torch.optim.Adam([*cell.parameters(), *words.parameters()])
for _ in range(3):
    state, loss = torch.zeros(128, 1024, device="cuda"), 0
    for _ in range(12):
        state = cell(torch.randn(128, 512, device="cuda"), state)
        target = torch.randint(8000, (128,), device="cuda")
        loss = loss + nn.functional.cross_entropy(words(state), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
