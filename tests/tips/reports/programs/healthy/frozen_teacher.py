"""Distillation: a larger teacher answers under no_grad."""

import torch
from torch import nn

teacher = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)]).cuda().eval()
student = nn.Sequential(nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 2048)).cuda()
optimizer = torch.optim.Adam(student.parameters())
for _ in range(6):
    x = torch.randn(2048, 2048, device="cuda")
    with torch.no_grad():
        wanted = teacher(x).softmax(-1)
    got = student(x).log_softmax(-1)
    loss = nn.functional.kl_div(got, wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
