"""Sequences of four padded lengths, longest first."""

import torch
from torch import nn

model = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).cuda()
optimizer = torch.optim.Adam(model.parameters())
for length in (512, 256, 512, 128, 64, 512, 256, 64):
    model(torch.randn(16384 // length, length, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
