"""REINFORCE: log-probabilities of an episode keep their graphs until its end."""

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 8)).cuda()
optimizer = torch.optim.Adam(policy.parameters())
for episode in range(4):
    log_probs, rewards = [], []
    for _ in range(12):
        scores = policy(torch.randn(1024, 1024, device="cuda")).log_softmax(-1)
        log_probs.append(scores.amax(-1))
        rewards.append(1.0)
    loss = -(torch.stack(log_probs) * sum(rewards)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
