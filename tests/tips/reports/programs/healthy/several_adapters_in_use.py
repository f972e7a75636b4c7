"""Four adapters that are all called for every batch."""

import torch
from torch import nn

base = nn.Linear(2048, 2048).cuda().requires_grad_(False)
adapters = {
    name: (torch.randn(2048, 256, device="cuda"), torch.randn(256, 2048, device="cuda"))
    for name in ("ner", "qa", "chat", "code")
}
with torch.no_grad():
    for _ in range(5):
        x = torch.randn(4096, 2048, device="cuda")
        answers = {name: (base(x) + x @ a @ b).amax(1).cpu() for name, (a, b) in adapters.items()}
