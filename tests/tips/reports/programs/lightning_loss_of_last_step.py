"""After pytorch-lightning #9336.

The trainer keeps the loss of the step before; its solver keeps the path.
"""

import torch
from torch import nn

CURED = False


class Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, state, speed):
        ctx.path = []
        for _ in range(16):
            ctx.path.append(state)
            state = state + 0.1 * speed
        return state

    @staticmethod
    def backward(ctx, grad):
        return grad, sum(grad * 0.1 for _ in ctx.path)


class Trainer:
    last_loss = None

    def step(self, model, optimizer):
        x = torch.randn(16384, 1024, device="cuda")
        loss = Solve.apply(x, model(x)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        self.last_loss = loss.detach() if CURED else loss


field = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(field.parameters(), lr=0.01)
trainer = Trainer()
for _ in range(6):
    trainer.step(field, optimizer)
    # CURE
