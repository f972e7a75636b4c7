"""After autonomous-learning-library #144: each state of the replay has all of its four frames."""

from collections import deque

import torch
from torch import nn

CURED = False
q = nn.Sequential(
    nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 20 * 20, 6)
).cuda()
optimizer = torch.optim.Adam(q.parameters())


class Replay:
    def __init__(self, capacity):
        self.states = deque(maxlen=capacity)

    def push(self, frames):
        self.states.append(list(frames) if CURED else torch.cat(list(frames)))

    def sample(self):
        return [self.states[-1 - i] for i in range(min(8, len(self.states)))]


replay = Replay(100_000 if CURED else 1_000_000)
frames = deque((torch.zeros(1, 84, 84, device="cuda") for _ in range(4)), maxlen=4)
for episode in range(6):
    for _ in range(200):
        frames.append(torch.rand(1, 84, 84, device="cuda"))
        replay.push(frames)
    batch = torch.stack([s if torch.is_tensor(s) else torch.cat(s) for s in replay.sample()])
    q(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
# CURE
