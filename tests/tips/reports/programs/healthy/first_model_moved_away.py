"""The first model goes to the CPU before the second is loaded."""

import torch
from torch import nn

first = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(30)]).cuda().eval()
with torch.no_grad():
    coded = [first(torch.randn(64, 2048, device="cuda")).cpu() for _ in range(4)]
first.cpu()
second = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(30)]).cuda().eval()
with torch.no_grad():
    texts = [second(part.cuda()).cpu() for part in coded]
