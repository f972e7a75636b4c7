"""After pytext #204: the best weights so far are copied on the card that is nearly full."""

import copy

import torch
from torch import nn

CURED = False
model = nn.Sequential(nn.Embedding(512_000, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
best_model_state = None
best = 0.0
for epoch in range(3):
    for _ in range(2):
        ids = torch.randint(512_000, (64, 512), device="cuda")
        model(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    score = float(epoch + 1)
    if score > best:
        best = score
        if CURED:
            best_model_state = {k: v.cpu() for k, v in model.state_dict().items()}
        else:
            best_model_state = copy.deepcopy(model.state_dict())
