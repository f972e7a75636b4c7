"""A replay of a fixed size is filled in place, and a target net follows slowly."""

import copy

import torch
from torch import nn

size = 20_000
states = torch.zeros(size, 84, device="cuda")
rewards = torch.zeros(size, device="cuda")
q = nn.Sequential(nn.Linear(84, 2048), nn.ReLU(), nn.Linear(2048, 64)).cuda()
slow = copy.deepcopy(q).requires_grad_(False)
optimizer = torch.optim.Adam(q.parameters())
for step in range(12):
    place = slice(step * 64, step * 64 + 64)
    states[place], rewards[place] = torch.randn(64, 84, device="cuda"), 1.0
    rows = torch.randint(64 * (step + 1), (512,), device="cuda")
    with torch.no_grad():
        goal = rewards[rows] + slow(states[rows]).amax(-1)
    (q(states[rows]).amax(-1) - goal).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for old, new in zip(slow.parameters(), q.parameters()):
            old.lerp_(new, 0.01)
