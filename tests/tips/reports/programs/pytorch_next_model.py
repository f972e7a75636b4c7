"""After a question on empty_cache: one model after another is put to the test."""

import torch
from torch import nn

CURED = False


def build(depth):
    return nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(depth))).cuda().eval()


def measure(model):
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 4096, device="cuda"))


model = build(16)
measure(model)
if CURED:
    del model
torch.cuda.empty_cache()
model = build(15)
measure(model)
