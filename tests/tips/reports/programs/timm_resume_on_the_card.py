"""After pytorch-image-models #72.

Resuming reads checkpoint and averaged weights straight onto the card.
"""

import os
import tempfile

import torch
from torch import nn

CURED = False


def network():
    return nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(24)]).cuda()


def resume(model, path):
    checkpoint = torch.load(path, map_location="cpu") if CURED else torch.load(path)
    model.load_state_dict(checkpoint["ema"])
    return checkpoint["epoch"]


folder = tempfile.mkdtemp()
path = os.path.join(folder, "last.pt")
first = network()
torch.save({"ema": first.state_dict(), "epoch": 7}, path)
del first

# CURE
ema = network().requires_grad_(False)
epoch = resume(ema, path)
os.remove(path)
with torch.no_grad():
    ema(torch.randn(64, 2048, device="cuda"))
