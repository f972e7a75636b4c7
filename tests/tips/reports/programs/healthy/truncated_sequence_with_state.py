"""A long sequence is trained in pieces: each goes back by itself, and the state is detached."""

import torch
from torch import nn

rnn, head = nn.LSTM(256, 1024, batch_first=True).cuda(), nn.Linear(1024, 256).cuda()
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()])
state = None
for _ in range(8):
    piece = torch.randn(64, 64, 256, device="cuda")
    made, state = rnn(piece, state)
    state = tuple(part.detach() for part in state)
    (head(made) - piece).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
