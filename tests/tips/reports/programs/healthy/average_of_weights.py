"""An average of the weights that is evaluated after each epoch."""

import copy

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
ema = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for _ in range(3):
        loss = model(torch.randn(1024, 1536, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, now in zip(ema.parameters(), model.parameters()):
                kept.lerp_(now, 0.01)
    with torch.no_grad():
        print(ema(torch.randn(1024, 1536, device="cuda")).mean().item())
