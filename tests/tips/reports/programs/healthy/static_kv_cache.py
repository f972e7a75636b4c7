"""A cache of fixed length that decoding writes into."""

import torch
from torch import nn

cache = torch.zeros(2, 32, 1024, 1024, device="cuda", dtype=torch.float16)
qkv = nn.Linear(1024, 3072).half().cuda().eval().requires_grad_(False)
x = torch.randn(32, 1, 1024, device="cuda", dtype=torch.float16)
with torch.no_grad():
    for position in range(40):
        q, k, v = qkv(x).chunk(3, -1)
        cache[0, :, position : position + 1] = k
        cache[1, :, position : position + 1] = v
        keys, values = cache[0, :, : position + 1], cache[1, :, : position + 1]
        x = nn.functional.scaled_dot_product_attention(q, keys, values)
