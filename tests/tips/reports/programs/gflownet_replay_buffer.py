"""After gflownet #130.

A replay buffer of trajectories keeps tensors of the card with their graphs.
"""

import random

import torch
from torch import nn

CURED = False


class ReplayBuffer:
    def __init__(self, capacity):
        self.capacity, self.buffer = capacity, []

    def push(self, *sample):
        if CURED:
            sample = tuple(part.detach().cpu() for part in sample)
        if len(self.buffer) < self.capacity:
            self.buffer.append(sample)
        else:
            self.buffer[random.randrange(self.capacity)] = sample


policy = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 64)).cuda()
optimizer = torch.optim.Adam(policy.parameters())
replay = ReplayBuffer(capacity=5000)
for _ in range(15):
    states = torch.randn(4096, 512, device="cuda")
    log_probs = policy(states).log_softmax(-1)
    replay.push(states.cpu(), log_probs.amax(-1))
    policy(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
# CURE
