"""SAM: weights are shifted, a second backward follows, and they are shifted back."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(4):
    x = torch.randn(1024, 1536, device="cuda")
    model(x).square().mean().backward()
    with torch.no_grad():
        shifts = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in model.parameters()]
        for p, shift in zip(model.parameters(), shifts):
            p.add_(shift)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    with torch.no_grad():
        for p, shift in zip(model.parameters(), shifts):
            p.sub_(shift)
    optimizer.step()
    optimizer.zero_grad()
