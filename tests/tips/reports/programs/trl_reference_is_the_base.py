"""After trl #624.

A whole copy is the reference, though the base below the adapter is frozen.
"""

import copy

import torch
from torch import nn

CURED = False


class Lora(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, 8, bias=False)
        self.up = nn.Linear(8, width, bias=False)
        self.enabled = True

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) if self.enabled else self.base(x)


def switch(model, enabled):
    for layer in model:
        layer.enabled = enabled


policy = nn.Sequential(*[Lora(2048) for _ in range(40)]).cuda()
reference = policy if CURED else copy.deepcopy(policy).eval().requires_grad_(False)
# CURE
optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad])
for _ in range(4):
    x = torch.randn(64, 2048, device="cuda")
    with torch.no_grad():
        switch(reference, enabled=False)
        wanted = reference(x)
    switch(policy, enabled=True)
    (policy(x) - wanted).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
