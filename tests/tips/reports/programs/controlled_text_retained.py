"""After toward-controlled-generation #9: the last backward of a step retains its graph, too."""

import torch
from torch import nn

CURED = False
encoder = nn.GRU(128, 1024, batch_first=True).cuda()
generator = nn.GRU(1024, 1024, batch_first=True).cuda()
output = nn.Linear(1024, 500).cuda()
parts = [*encoder.parameters(), *generator.parameters(), *output.parameters()]
optimizer = torch.optim.Adam(parts)
for _ in range(4):
    sentences = torch.randn(256, 32, 128, device="cuda")
    hidden, _ = encoder(sentences)
    made, _ = generator(hidden)
    logits = output(made)
    reconstruction = logits.logsumexp(-1).mean()
    prior = hidden.square().mean()
    optimizer.zero_grad()
    prior.backward(retain_graph=True)
    reconstruction.backward(retain_graph=not CURED)
    optimizer.step()
