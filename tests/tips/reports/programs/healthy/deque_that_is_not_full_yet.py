"""A replay memory with a bound, still filling."""

from collections import deque

import torch
from torch import nn

memory = deque(maxlen=16)
q = nn.Linear(84 * 84 * 4, 6).cuda()
optimizer = torch.optim.Adam(q.parameters())
for step in range(12):
    with torch.no_grad():
        state = torch.randn(64, 84 * 84 * 4, device="cuda")
        memory.append(state)
    loss = q(memory[step // 2]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
