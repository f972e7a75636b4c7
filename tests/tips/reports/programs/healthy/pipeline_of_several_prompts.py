"""A pipeline takes prompts one after the other: its encoder waits for the next one."""

import torch
from torch import nn


class Pipeline:
    def __init__(self):
        self.encoder = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(20)]).cuda().eval()
        self.denoiser = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(20)]).cuda().eval()

    @torch.no_grad()
    def __call__(self, steps=8):
        prompt = self.encoder(torch.randn(64, 2048, device="cuda"))
        x = torch.randn(64, 2048, device="cuda")
        for _ in range(steps):
            x = x - 0.1 * self.denoiser(x + prompt)
        return x.cpu()


pipeline = Pipeline()
images = [pipeline() for _ in range(4)]
