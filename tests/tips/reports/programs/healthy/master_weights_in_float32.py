"""A float16 model with float32 master weights that every step uses."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda().half()
masters = [p.detach().clone().float().requires_grad_(True) for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.01)
for _ in range(5):
    x = torch.randn(512, 2048, device="cuda", dtype=torch.float16)
    (model(x).float().square().mean() * 128).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad = p.grad.float() / 128
        p.grad = None
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
