"""After pytorch_geometric #1595.

A graph's .to() moves the dataset's own object, so the dataset moves along.
"""

import torch
from torch import nn

CURED = False


class Graph:
    def __init__(self, nodes):
        self.x = torch.randn(nodes, 256)
        self.edges = torch.randint(0, nodes, (2, 8 * nodes))

    def to(self, device):
        moved = Graph.__new__(Graph) if CURED else self
        moved.x, moved.edges = self.x.to(device), self.edges.to(device)
        return moved


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(256, 64)

    def forward(self, graph):
        hidden = self.lin(graph.x).relu()
        return torch.zeros_like(hidden).index_add(0, graph.edges[1], hidden[graph.edges[0]])


dataset = [Graph(20000) for _ in range(24)]
net = Net().cuda()
optimizer = torch.optim.Adam(net.parameters())
for data in dataset:
    data = data.to("cuda")
    net(data).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
del data
# CURE
