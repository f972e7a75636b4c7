"""The reference of a policy with adapters is the policy itself, with its adapters off."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(2048, 2048).requires_grad_(False)
        self.down, self.up = nn.Linear(2048, 16), nn.Linear(16, 2048)
        self.on = True

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) if self.on else self.base(x)


policy = nn.Sequential(*[Adapted() for _ in range(12)]).cuda()
optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad])
for _ in range(3):
    x = torch.randn(256, 2048, device="cuda")
    for layer in policy:
        layer.on = False
    with torch.no_grad():
        goal = policy(x)
    for layer in policy:
        layer.on = True
    (policy(x) - goal).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
