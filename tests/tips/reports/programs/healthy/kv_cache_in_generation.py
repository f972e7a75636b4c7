"""Decoding joins each new key and value to the cache, and drops it with the text."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(1024, 3072)

    def forward(self, x, past):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        return nn.functional.scaled_dot_product_attention(q, k, v), (k, v)


model = Attention().half().cuda().eval()


@torch.no_grad()
def generate(prompt, new):
    past, x = None, prompt
    for _ in range(new):
        x, past = model(x, past)
        x = x[:, -1:]
    return x.cpu()


for _ in range(3):
    text = generate(torch.randn(64, 256, 1024, device="cuda", dtype=torch.float16), 30)
