"""After a report on a lambda in a module: nets that are replaced stay on the card."""

import torch
from torch import nn

CURED = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8192, 4096), nn.ReLU(), nn.Linear(4096, 10))
        self.names = ["cat", "dog"]
        if CURED:
            names = self.names
            self.label = lambda index: names[index]
        else:
            self.label = lambda index: self.names[index]

    def forward(self, x):
        return self.body(x)


for _ in range(5):
    net = Net().cuda()
    with torch.no_grad():
        net(torch.randn(64, 8192, device="cuda"))
# CURE
