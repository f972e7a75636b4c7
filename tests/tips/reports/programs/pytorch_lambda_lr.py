"""After a report on LambdaLR: each run's optimizer stays on the card."""

import torch

CURED = False
weight = torch.nn.Linear(4096, 4096).cuda()


class Run:
    def __init__(self):
        self.rate = 1.0
        self.optimizer = torch.optim.Adam(weight.parameters())
        rate = self.rate
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lr_lambda=(lambda _: rate) if CURED else (lambda _: self.rate)
        )

    def step(self):
        loss = weight(torch.randn(32, 4096, device="cuda")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()


for _ in range(6):
    Run().step()
    # CURE
