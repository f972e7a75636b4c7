"""Everything in functions; nothing is left at the end."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda()
    return model, torch.optim.AdamW(model.parameters())


def train(model, optimizer, steps):
    seen = []
    for _ in range(steps):
        loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return torch.stack(seen).mean().item()


def main():
    model, optimizer = build()
    for _ in range(3):
        print(train(model, optimizer, 4))


main()
