"""After LTX-Video #23: the text encoder lies on the card while the video is denoised."""

import torch
from torch import nn

CURED = False


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32000, 1024)
        self.layers = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(80)])

    def forward(self, ids):
        return self.layers(self.embed(ids))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2048, 1024)
        self.blocks = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(60)])

    def forward(self, latents, prompt):
        return self.blocks(self.mix(torch.cat([latents, prompt.expand_as(latents)], -1)))


class Pipeline:
    def __init__(self):
        self.text_encoder = TextEncoder().cuda().eval()
        self.transformer = Transformer().cuda().eval()
        self.vae = nn.Linear(1024, 12 * 1024).cuda().eval()

    @torch.no_grad()
    def __call__(self, ids):
        prompt = self.text_encoder(ids).mean(1, keepdim=True)
        if CURED:
            self.text_encoder.to("cpu")
        latents = torch.randn(1, 8192, 1024, device="cuda")
        for _ in range(10):
            latents = latents - 0.1 * self.transformer(latents, prompt)
        return self.vae(latents)


pipeline = Pipeline()
video = pipeline(torch.randint(32000, (1, 128), device="cuda"))
