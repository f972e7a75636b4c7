"""Adapters are trained on a frozen base."""

import torch
from torch import nn


class Lora(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 8, bias=False), nn.Linear(8, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


model = nn.Sequential(*[Lora(2048) for _ in range(16)]).cuda()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(5):
    model(torch.randn(1024, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
