"""DQN: a target network that is copied every few steps."""

import copy

import torch
from torch import nn

online = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 18)).cuda()
target = copy.deepcopy(online).eval()
optimizer = torch.optim.Adam(online.parameters())
for step in range(8):
    states = torch.randn(2048, 1024, device="cuda")
    with torch.no_grad():
        wanted = target(states).amax(1)
    loss = (online(states).amax(1) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        target.load_state_dict(online.state_dict())
