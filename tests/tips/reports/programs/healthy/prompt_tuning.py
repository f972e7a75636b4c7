"""Only a prompt is trained; its gradient goes back through the whole frozen model."""

import torch
from torch import nn


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = nn.Parameter(torch.zeros(1, 20, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        self.model = nn.TransformerEncoder(layer, 6).requires_grad_(False)

    def forward(self, x):
        return self.model(torch.cat([self.prompt.expand(len(x), -1, -1), x], 1)).mean()


tuned = Tuned().cuda()
optimizer = torch.optim.Adam([tuned.prompt])
for _ in range(3):
    tuned(torch.randn(8, 200, 768, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
