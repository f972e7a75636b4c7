"""A small data set lies on the card for the whole training."""

import torch
from torch import nn

images = torch.randn(60000, 784, device="cuda")
labels = torch.randint(0, 10, (60000,), device="cuda")
model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    order = torch.randperm(60000, device="cuda")
    for rows in order.split(6000):
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
