"""L-BFGS keeps a history of steps that has a limit."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=5)
x, y = torch.randn(8192, 1024, device="cuda"), torch.randn(8192, 1, device="cuda")


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(4):
    optimizer.step(closure)
