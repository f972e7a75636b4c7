"""After a report on cycles: the collector does not run before memory runs out."""

import torch

CURED = False


class Node:
    def __init__(self, tensor):
        self.tensor = tensor
        self.children = []

    def add(self, child):
        self.children.append(child)
        if not CURED:
            child.parent = self


def parse(batch):
    root = Node(torch.randn(batch, 4096, device="cuda"))
    root.add(Node(root.tensor.relu()))
    root.add(Node(root.children[0].tensor * 2))
    return root.children[1].tensor.mean()


for _ in range(30):
    score = parse(32768)
print(float(score))
