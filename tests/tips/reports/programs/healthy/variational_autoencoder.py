"""Two losses of one graph are added, and go back in one backward."""

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 128))
        self.decode = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 3072))

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, -1)
        return self.decode(mean + spread.exp() * torch.randn_like(mean)), mean, spread


model = Autoencoder().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    x = torch.randn(4096, 3072, device="cuda")
    again, mean, spread = model(x)
    loss = (again - x).square().mean() + (mean.square() + spread.exp() - spread).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
