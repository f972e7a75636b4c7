"""After pytorch_geometric #9259.

Batches of graphs of any size: reserved memory grows, allocated does not.
"""

import random

import torch
from torch import nn

CURED = False
# CURE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x, edges):
        for layer in self.layers:
            x = layer(x).relu()
            x = x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return x


random.seed(3)
net = Net().cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(60):
    nodes = random.randint(5000, 90000)
    x = torch.randn(nodes, 256, device="cuda")
    edges = torch.randint(0, nodes, (2, 2 * nodes), device="cuda")
    net(x, edges).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if CURED:
        del x, edges
        torch.cuda.empty_cache()
