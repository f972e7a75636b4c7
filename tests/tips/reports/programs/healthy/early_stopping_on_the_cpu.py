"""The best weights so far are kept on the CPU."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
best, best_loss = None, float("inf")
for epoch in range(4):
    loss = model(torch.randn(1024, 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() <= best_loss:
        best_loss = loss.item()
        best = {name: value.cpu() for name, value in model.state_dict().items()}
model.load_state_dict(best)
