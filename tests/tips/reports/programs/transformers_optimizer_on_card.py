"""After transformers #22123: the optimizer's state is loaded to the card before it is copied."""

import os
import tempfile

import torch
from torch import nn

CURED = False


def build():
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(30)]).cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)


def step(model, optimizer):
    model(torch.randn(16, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def load_optimizer(folder, optimizer):
    where = "cpu" if CURED else "cuda"
    # CURE
    optimizer.load_state_dict(torch.load(os.path.join(folder, "optimizer.pt"), map_location=where))


with tempfile.TemporaryDirectory() as folder:
    model, optimizer = build()
    step(model, optimizer)
    torch.save(optimizer.state_dict(), os.path.join(folder, "optimizer.pt"))
    torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
    del model, optimizer
    torch.cuda.empty_cache()
    model, optimizer = build()
    model.load_state_dict(torch.load(os.path.join(folder, "model.pt"), map_location="cpu"))
    load_optimizer(folder, optimizer)
for _ in range(3):
    step(model, optimizer)
