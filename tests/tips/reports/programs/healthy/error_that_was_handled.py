"""A batch of the wrong shape raises in the middle of a pass and is skipped."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for width in (1024, 1024, 1000, 1024, 1024):
    try:
        loss = model(torch.randn(8192, width, device="cuda")).square().mean()
    except RuntimeError as error:
        print("skipped:", str(error)[:40])
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
