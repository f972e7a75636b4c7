"""A target net is copied anew every few steps, and used in each."""

import copy

import torch
from torch import nn

online = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters())
for step in range(8):
    states = torch.randn(256, 512, device="cuda")
    with torch.no_grad():
        wanted = target(states)
    (online(states) - wanted).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 3:
        target.load_state_dict(online.state_dict())
