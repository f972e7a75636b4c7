"""The last four frames lie in a deque that drops the oldest."""

from collections import deque

import torch
from torch import nn

net = nn.Conv2d(12, 32, 3, padding=1).cuda()
frames = deque([torch.zeros(8, 3, 512, 512, device="cuda")] * 4, maxlen=4)
with torch.no_grad():
    for _ in range(12):
        frames.append(torch.randn(8, 3, 512, 512, device="cuda"))
        action = net(torch.cat(list(frames), 1)).mean().item()
