"""After diffusers #11225.

Validation loads the whole pipeline again beside the one that trains.
"""

import torch
from torch import nn

CURED = False


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(1536, 1536) for _ in range(40))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x).relu()
        return x


class Pipeline(nn.Module):
    def __init__(self, unet=None):
        super().__init__()
        self.unet = unet or Unet()
        self.vae = nn.Sequential(*[nn.Linear(1536, 1536) for _ in range(20)])

    def forward(self, x):
        return self.vae(self.unet(x))


def log_validation(trained):
    pipeline = Pipeline(trained if CURED else None).cuda()
    pipeline.unet.load_state_dict(trained.state_dict())
    pipeline.eval()
    with torch.no_grad():
        image = pipeline(torch.randn(32, 1536, device="cuda")).cpu()
    trained.train()
    return image


unet = Unet().cuda()
optimizer = torch.optim.SGD(unet.parameters(), lr=1e-3)
# CURE
for step in range(6):
    unet(torch.randn(32, 1536, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 2:
        log_validation(unet)
