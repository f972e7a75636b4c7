"""Training with a validation under no_grad that sums its loss on the card."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
history = {"train": [], "val": []}
for epoch in range(4):
    model.train()
    for _ in range(3):
        loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    history["train"].append(loss.item())
    model.eval()
    total = 0
    with torch.no_grad():
        for _ in range(4):
            total += model(torch.randn(2048, 1024, device="cuda")).square().mean()
    history["val"].append(total.item() / 4)
    optimizer.zero_grad()
