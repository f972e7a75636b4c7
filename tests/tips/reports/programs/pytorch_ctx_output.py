"""After a report on custom functions: forward puts its own output on the context."""

import torch
from torch import nn

CURED = False


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        if CURED:
            ctx.save_for_backward(y)
        else:
            ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors if CURED else (ctx.y,)
        return grad * y


model = nn.Linear(1024, 4096).cuda()
head = nn.Linear(4096, 10).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
for _ in range(40):
    x = torch.randn(8192, 1024, device="cuda")
    loss = head(Exp.apply(model(x))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
