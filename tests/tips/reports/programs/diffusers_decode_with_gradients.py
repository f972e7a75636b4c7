"""After diffusers #10350.

Latents are decoded for a look at them, with gradients on.
"""

import torch
from torch import nn

CURED = False


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(4, 128, 3, padding=1)]
        for _ in range(3):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(128, 128, 3, padding=1), nn.SiLU()]
        self.decoder = nn.Sequential(*layers, nn.Conv2d(128, 3, 3, padding=1))

    def decode(self, latents):
        return self.decoder(latents)


vae = AutoEncoder().cuda().eval()
if CURED:
    vae.requires_grad_(False)
# CURE
for _ in range(4):
    latents = torch.randn(4, 4, 64, 64, device="cuda")
    image = vae.decode(latents / 0.18)
    preview = image[0].mean().item()
