"""Three frozen models of one shape and other weights are the teachers of a fourth."""

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 100)).cuda()


teachers = [build().eval().requires_grad_(False) for _ in range(3)]
student = build()
optimizer = torch.optim.Adam(student.parameters())
for _ in range(4):
    x = torch.randn(2048, 1024, device="cuda")
    with torch.no_grad():
        goal = torch.stack([teacher(x).softmax(-1) for teacher in teachers]).mean(0)
    nn.functional.cross_entropy(student(x), goal).backward()
    optimizer.step()
    optimizer.zero_grad()
