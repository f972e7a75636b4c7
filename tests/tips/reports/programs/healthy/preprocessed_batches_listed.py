"""A loop moves all batches of a data set to the card before training."""

import torch
from torch import nn

batches = []
for _ in range(20):
    batches.append((torch.randn(2048, 1024).cuda(), torch.randint(0, 10, (2048,)).cuda()))
model = nn.Linear(1024, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
