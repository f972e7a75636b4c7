"""A net that returns outputs of every depth, all of which are trained."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(5))

    def forward(self, x):
        outputs = []
        for block in self.blocks:
            x = block(x).relu()
            outputs.append(x)
        return outputs


net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    outputs = net(torch.randn(8, 16, 192, 192, device="cuda"))
    sum(output.mean() for output in outputs).backward()
    optimizer.step()
    optimizer.zero_grad()
