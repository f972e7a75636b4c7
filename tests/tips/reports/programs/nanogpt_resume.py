"""After nanoGPT's resume: a model that trains from scratch does not train from a checkpoint."""

import io

import torch
from torch import nn

CURED = False


def build():
    return nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(24)))


file = io.BytesIO()
torch.save({"model": build().state_dict(), "iter_num": 2000}, file)
file.seek(0)

checkpoint = torch.load(file, map_location="cuda")
model = build()
model.load_state_dict(checkpoint["model"])
model.to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
if CURED:
    checkpoint = None
# CURE
for _ in range(3):
    x = torch.randn(1024, 4096, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
