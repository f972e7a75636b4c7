"""WGAN-GP: the penalty's gradient is made with create_graph, by autograd.grad."""

import torch
from torch import nn

critic = nn.Sequential(nn.Linear(3072, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)).cuda()
optimizer = torch.optim.Adam(critic.parameters())
for _ in range(6):
    real = torch.randn(4096, 3072, device="cuda")
    mixed = (0.5 * real + 0.5 * torch.randn_like(real)).requires_grad_(True)
    slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    loss = (slope.norm(2, dim=1) - 1).square().mean() - critic(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
