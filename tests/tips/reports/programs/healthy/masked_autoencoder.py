"""An encoder takes a quarter of the patches, and a decoder all of them."""

import torch
from torch import nn


def blocks(width, depth):
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth)


encoder, decoder = blocks(512, 6).cuda(), blocks(256, 2).cuda()
narrow = nn.Linear(512, 256).cuda()
parts = [*encoder.parameters(), *decoder.parameters(), *narrow.parameters()]
optimizer = torch.optim.AdamW(parts)
for _ in range(3):
    patches = torch.randn(32, 196, 512, device="cuda")
    chosen = torch.randperm(196, device="cuda")[:49]
    seen = narrow(encoder(patches[:, chosen]))
    hidden = torch.zeros(32, 147, 256, device="cuda")
    decoder(torch.cat([seen, hidden], 1)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
