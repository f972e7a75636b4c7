"""K-means: points stay, centres are written anew in each round."""

import torch

points = torch.randn(500_000, 64, device="cuda")
centres = points[:256].clone()
for _ in range(5):
    nearest = torch.cat([torch.cdist(part, centres).argmin(1) for part in points.split(100_000)])
    sums = torch.zeros_like(centres).index_add_(0, nearest, points)
    counts = torch.zeros(256, device="cuda").index_add_(
        0, nearest, torch.ones(500_000, device="cuda")
    )
    centres = sums / counts.clamp(min=1)[:, None]
