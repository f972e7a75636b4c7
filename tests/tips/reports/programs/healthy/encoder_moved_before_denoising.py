"""The encoder is moved to the CPU before the long loop, and comes back for the next prompt."""

import torch
from torch import nn

encoder = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(30)]).eval()
denoiser = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(20)]).cuda().eval()
with torch.no_grad():
    for _ in range(3):
        prompt = encoder.cuda()(torch.randn(64, 2048, device="cuda"))
        encoder.cpu()
        x = torch.randn(64, 2048, device="cuda")
        for _ in range(10):
            x = x - 0.1 * denoiser(x + prompt)
