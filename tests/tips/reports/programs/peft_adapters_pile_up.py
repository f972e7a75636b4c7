"""After peft #957.

Each task loads one more adapter into the base model; none is unloaded.
"""

import torch
from torch import nn

CURED = False


class AdaptedLinear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.adapters = {}
        self.active = None

    def load_adapter(self, name, rank):
        if CURED:
            self.adapters.clear()
        width = self.base.in_features
        self.adapters[name] = (
            torch.randn(width, rank, device="cuda"),
            torch.randn(rank, width, device="cuda"),
        )
        self.active = name

    def forward(self, x):
        down, up = self.adapters[self.active]
        return self.base(x) + x @ down @ up


llm = nn.Sequential(*[AdaptedLinear(2048) for _ in range(12)]).cuda().eval()
tasks = ["ner", "qa", "chat", "code", "math", "sql", "tables", "news"]
for task in tasks:
    for layer in llm:
        layer.load_adapter(task, rank=128)
    with torch.no_grad():
        for _ in range(3):
            answer = llm(torch.randn(64, 2048, device="cuda"))
# CURE
