"""The best weights so far are kept on the card, on purpose and once."""

import copy

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
best_state, best_loss = None, float("inf")
for epoch in range(5):
    loss = model(torch.randn(1024, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss.item() < best_loss:
        best_loss, best_state = loss.item(), copy.deepcopy(model.state_dict())
