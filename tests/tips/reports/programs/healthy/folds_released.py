"""Cross validation that keeps scores and releases each fold's model."""

import torch
from torch import nn


def fit(fold):
    model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(512, 1536, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


scores = [fit(fold) for fold in range(4)]
