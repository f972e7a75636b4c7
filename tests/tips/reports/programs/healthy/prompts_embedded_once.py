"""Embeddings of a few prompts are kept in a dictionary."""

import torch
from torch import nn

encoder = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(10)]).cuda().eval()
known = {}


@torch.no_grad()
def embed(prompt):
    if prompt not in known:
        known[prompt] = encoder(torch.randn(77, 2048, device="cuda"))
    return known[prompt]


unet = nn.Linear(2048, 2048).cuda().eval()
for number in range(24):
    with torch.no_grad():
        unet(torch.randn(4096, 2048, device="cuda") + embed(f"style {number % 4}").mean(0)).cpu()
