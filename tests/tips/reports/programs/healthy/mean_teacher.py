"""Semi-supervised: the mean teacher sees unlabelled images each step."""

import copy

import torch
from torch import nn

student = nn.Sequential(nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
for _ in range(6):
    labels = torch.randint(0, 10, (1024,), device="cuda")
    plain = torch.randn(4096, 3072, device="cuda")
    loss = nn.functional.cross_entropy(student(torch.randn(1024, 3072, device="cuda")), labels)
    loss = loss + nn.functional.mse_loss(student(plain), teacher(plain))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.lerp_(fast, 0.01)
