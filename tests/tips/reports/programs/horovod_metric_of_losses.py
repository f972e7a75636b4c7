"""After horovod #641: a running average is updated with the loss and its graph."""

import torch
from torch import nn

CURED = False


class Metric:
    def __init__(self):
        self.sum, self.n = torch.tensor(0.0), torch.tensor(0.0)

    def update(self, value):
        self.sum = self.sum + (value.detach() if CURED else value).cpu()
        self.n = self.n + 1

    @property
    def avg(self):
        return self.sum / self.n


model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def validate(val_loss):
    model.eval()
    for _ in range(6):
        data = torch.randn(32, 3, 96, 96, device="cuda")
        target = torch.randint(100, (32,), device="cuda")
        with torch.set_grad_enabled(not CURED):
            val_loss.update(nn.functional.cross_entropy(model(data), target))


for _ in range(3):
    loss = model(torch.randn(32, 3, 96, 96, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
val_loss = Metric()
validate(val_loss)
# CURE
