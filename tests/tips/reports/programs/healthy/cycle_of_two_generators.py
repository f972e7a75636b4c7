"""Two generators share one optimizer, and each critic has fakes without a graph."""

import itertools

import torch
from torch import nn


def net(out):
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, out, 3, padding=1)
    ).cuda()


there, back, critic_a, critic_b = net(3), net(3), net(1), net(1)
g_optimizer = torch.optim.Adam(itertools.chain(there.parameters(), back.parameters()))
d_optimizer = torch.optim.Adam(itertools.chain(critic_a.parameters(), critic_b.parameters()))
for _ in range(3):
    a = torch.randn(16, 3, 96, 96, device="cuda")
    b = torch.randn(16, 3, 96, 96, device="cuda")
    fake_b, fake_a = there(a), back(b)
    loss = (back(fake_b) - a).abs().mean() + (there(fake_a) - b).abs().mean()
    loss = loss - critic_a(fake_a).mean() - critic_b(fake_b).mean()
    g_optimizer.zero_grad()
    loss.backward()
    g_optimizer.step()
    d_loss = critic_a(fake_a.detach()).mean() - critic_a(a).mean()
    d_loss = d_loss + critic_b(fake_b.detach()).mean() - critic_b(b).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
