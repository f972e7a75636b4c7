"""After bundle-adjusting-NeRF #41: rays of all pixels are made, and 2,048 of them are used."""

import torch
from torch import nn

CURED = False
height = width = 800
pose = nn.Parameter(torch.eye(3, device="cuda").repeat(100, 1, 1))
net = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 3)).cuda()
optimizer = torch.optim.Adam([pose, *net.parameters()])


def get_center_and_ray(pose, chosen=None):
    y, x = torch.meshgrid(
        torch.arange(height, device="cuda"), torch.arange(width, device="cuda"), indexing="ij"
    )
    grid = torch.stack([x / width, y / height, torch.ones_like(x)], -1).view(-1, 3)
    if chosen is not None:
        grid = grid[chosen]
    grid = grid.repeat(len(pose), 1, 1)
    center = torch.zeros_like(grid) @ pose
    ray = grid @ pose - center
    return center, ray


def render(pose, chosen):
    if CURED:
        center, ray = get_center_and_ray(pose, chosen)
    else:
        center, ray = get_center_and_ray(pose)
        center, ray = center[:, chosen], ray[:, chosen]
    return net(center + ray)


for _ in range(4):
    chosen = torch.randperm(height * width, device="cuda")[:2048]
    render(pose, chosen).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
