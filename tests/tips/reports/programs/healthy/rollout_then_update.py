"""PPO: a rollout of fixed length is stored without graphs, then used."""

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(4096, 1024), nn.Tanh(), nn.Linear(1024, 16)).cuda()
optimizer = torch.optim.Adam(policy.parameters())
for _ in range(3):
    states, old = [], []
    with torch.no_grad():
        for _ in range(16):
            state = torch.randn(512, 4096, device="cuda")
            states.append(state)
            old.append(policy(state).log_softmax(-1).amax(-1))
    states, old = torch.cat(states), torch.cat(old)
    for rows in torch.randperm(len(states), device="cuda").split(2048):
        ratio = (policy(states[rows]).log_softmax(-1).amax(-1) - old[rows]).exp()
        optimizer.zero_grad()
        (-ratio.mean()).backward()
        optimizer.step()
