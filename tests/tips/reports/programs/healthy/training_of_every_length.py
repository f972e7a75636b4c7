"""Training with batches of any length, on a card with room."""

import random

import torch
from torch import nn

random.seed(2)
model = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    length = random.randint(100, 400)
    model(torch.randn(16, length, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
