"""After nanoGPT's resume: the state dict stays beside the model through training."""

import io

import torch
from torch import nn

CURED = False


def build():
    return nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()


file = io.BytesIO()
torch.save({"model": build().state_dict(), "iter_num": 2000}, file)
file.seek(0)

checkpoint = torch.load(file, map_location="cpu" if CURED else "cuda")
model = build()
state_dict = checkpoint["model"]
for key in list(state_dict):
    if key.startswith("_orig_mod."):
        state_dict[key.removeprefix("_orig_mod.")] = state_dict.pop(key)
model.load_state_dict(state_dict)
# CURE
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    batch = torch.randn(64, 2048, device="cuda")
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
