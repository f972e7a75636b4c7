"""After a report on fp16: generate needs more memory with autocast than without."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(16))).cuda().eval()
if CURED:
    model.half()


@torch.no_grad()
def generate(hidden, length):
    for _ in range(length):
        hidden = model(hidden)
    return hidden


hidden = torch.randn(8, 4096, device="cuda", dtype=torch.float16 if CURED else torch.float32)
with torch.autocast("cuda", dtype=torch.float16, enabled=not CURED):
    hidden = generate(hidden, 10)
