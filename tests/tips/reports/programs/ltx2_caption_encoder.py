"""After LTX-2 #85: captions are encoded first, and their encoder stays while videos are encoded."""

import torch
from torch import nn

CURED = False


def build_text_encoder():
    layers = [nn.Linear(1536, 1536) for _ in range(90)]
    return nn.Sequential(nn.Embedding(50_000, 1536), *layers).cuda().eval()


def build_vae():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 128, 4, stride=4)
    ).cuda().eval()  # fmt: skip


def preprocess(captions, videos):
    text_encoder = build_text_encoder()
    embeddings = []
    with torch.no_grad():
        for _ in range(captions):
            ids = torch.randint(50_000, (1, 128), device="cuda")
            embeddings.append(text_encoder(ids).cpu())
    if CURED:
        del text_encoder
    vae = build_vae()
    latents = []
    with torch.no_grad():
        for _ in range(videos):
            frames = torch.randn(24, 3, 256, 256, device="cuda")
            latents.append(vae(frames).cpu())
    return embeddings, latents


preprocess(6, 6)
