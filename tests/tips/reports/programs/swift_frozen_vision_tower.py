"""After ms-swift #10214: a hook makes the frozen vision tower's input need gradients."""

import torch
from torch import nn

CURED = False


class VisionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 512, 16, stride=16)
        self.layers = nn.Sequential(
            *[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(12)]
        )

    def forward(self, images):
        return self.layers(self.embed(images).flatten(2).transpose(1, 2))


class Multimodal(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = VisionModel().requires_grad_(False)
        self.aligner = nn.Linear(512, 1024).requires_grad_(False)
        self.language = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)])
        if not CURED:
            self.vision.embed.register_forward_hook(lambda m, i, out: out.requires_grad_(True))

    def forward(self, images):
        return self.language(self.aligner(self.vision(images)).mean(1))


model = Multimodal().cuda()
optimizer = torch.optim.AdamW(model.language.parameters())
for _ in range(3):
    model(torch.randn(96, 3, 448, 448, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
