"""After asapdiscovery #722: the samples of a batch run one by one, and the loss waits for all."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(
    nn.Linear(128, 1024), nn.SiLU(), nn.Linear(1024, 1024), nn.SiLU(), nn.Linear(1024, 1)
).cuda()
optimizer = torch.optim.Adam(model.parameters())
loss_fn = nn.MSELoss()
for _ in range(3):
    optimizer.zero_grad()
    batch_loss = 0
    for atoms in range(4000, 8000, 250):
        complex_ = torch.randn(atoms, 128, device="cuda")
        target = torch.randn((), device="cuda")
        loss = loss_fn(model(complex_).sum(), target)
        if CURED:
            loss.backward()
        else:
            batch_loss += loss
    if not CURED:
        batch_loss.backward()
    optimizer.step()
