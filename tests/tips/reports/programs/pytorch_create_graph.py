"""After a report on create_graph: models that are replaced stay on the card."""

import torch
from torch import nn

CURED = False
for _ in range(4):
    model = nn.Sequential(nn.Linear(2048, 6144), nn.Tanh(), nn.Linear(6144, 2048)).cuda()
    x = torch.randn(512, 2048, device="cuda")
    loss = model(x).square().mean()
    if CURED:
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    else:
        loss.backward(create_graph=True)
        grads = [p.grad for p in model.parameters()]
    penalty = sum(grad.square().sum() for grad in grads)
    penalty.backward()
del model, x, loss, grads, penalty
