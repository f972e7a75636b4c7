"""Logits of the validation set are gathered on the card to fit one temperature."""

import torch
from torch import nn

model = nn.Linear(1024, 1000).cuda().eval()


def gather():
    logits, labels = [], []
    with torch.no_grad():
        for _ in range(6):
            logits.append(model(torch.randn(4096, 1024, device="cuda")))
            labels.append(torch.randint(0, 1000, (4096,), device="cuda"))
    return torch.cat(logits), torch.cat(labels)


logits, labels = gather()
temperature = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([temperature], lr=0.01)
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits / temperature, labels).backward()
    optimizer.step()
