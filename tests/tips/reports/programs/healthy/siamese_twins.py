"""One encoder sees two views before the backward."""

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 256)).cuda()
optimizer = torch.optim.Adam(encoder.parameters())
for _ in range(5):
    image = torch.randn(2048, 3072, device="cuda")
    left, right = encoder(image + 0.1), encoder(image - 0.1)
    loss = -nn.functional.cosine_similarity(left, right).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
