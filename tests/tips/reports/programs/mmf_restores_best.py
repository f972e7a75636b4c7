"""After mmf #185: at the end the best checkpoint is loaded, and its optimizer state copied."""

import copy
import os
import tempfile

import torch
from torch import nn

CURED = False
model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(16)]).cuda()
optimizer = torch.optim.Adamax(model.parameters(), foreach=False)


def train(steps):
    for _ in range(steps):
        model(torch.randn(256, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


with tempfile.TemporaryDirectory() as folder:
    best = os.path.join(folder, "best.ckpt")
    train(2)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, best)
    train(2)
    ckpt = torch.load(best, map_location="cpu" if CURED else "cuda")
    model.load_state_dict(ckpt["model"])
    state = copy.deepcopy(ckpt["optimizer"])
    optimizer.load_state_dict(state)
with torch.no_grad():
    model(torch.randn(256, 4096, device="cuda"))
