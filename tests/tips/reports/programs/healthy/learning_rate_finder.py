"""A learning rate finder that restores weights from the CPU."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
start = {name: value.cpu().clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
rates, losses = [], []
for step in range(12):
    optimizer.param_groups[0]["lr"] = 1e-6 * 2**step
    loss = model(torch.randn(1024, 2048, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rates.append(optimizer.param_groups[0]["lr"])
    losses.append(loss.item())
model.load_state_dict(start)
