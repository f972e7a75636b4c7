"""Two students learn from one frozen teacher of another shape, each with its own optimizer."""

import torch
from torch import nn


def build(width):
    return nn.Sequential(nn.Linear(512, width), nn.ReLU(), nn.Linear(width, 1000)).cuda()


teacher = build(8192).eval().requires_grad_(False)
students = [build(1024), build(2048)]
optimizers = [torch.optim.Adam(student.parameters()) for student in students]
for _ in range(4):
    x = torch.randn(2048, 512, device="cuda")
    with torch.no_grad():
        goal = teacher(x).softmax(-1)
    for student, optimizer in zip(students, optimizers):
        nn.functional.cross_entropy(student(x), goal).backward()
        optimizer.step()
        optimizer.zero_grad()
