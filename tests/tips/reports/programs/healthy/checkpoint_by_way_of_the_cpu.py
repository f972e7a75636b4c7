"""A checkpoint is saved and loaded by way of the CPU."""

import io

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(10)]).cuda()
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
model.load_state_dict(torch.load(file, map_location="cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.randn(512, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
