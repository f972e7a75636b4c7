"""A GAN whose critic sees detached fakes."""

import torch
from torch import nn

maker = nn.Sequential(nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 3072)).cuda()
critic = nn.Sequential(nn.Linear(3072, 2048), nn.LeakyReLU(0.2), nn.Linear(2048, 1)).cuda()
maker_steps = torch.optim.Adam(maker.parameters(), betas=(0.5, 0.99))
critic_steps = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.99))
for _ in range(6):
    real = torch.randn(4096, 3072, device="cuda")
    fake = maker(torch.randn(4096, 128, device="cuda"))
    critic_steps.zero_grad()
    (critic(fake.detach()).mean() - critic(real).mean()).backward()
    critic_steps.step()
    maker_steps.zero_grad()
    (-critic(fake).mean()).backward()
    maker_steps.step()
