"""A running loss is summed detached, and read at the end of the epoch."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    running = torch.zeros((), device="cuda")
    for _ in range(5):
        loss = model(torch.randn(1024, 2048, device="cuda")).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        running += loss.detach()
    print(epoch, running.item() / 5)
