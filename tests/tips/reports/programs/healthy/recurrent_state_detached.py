"""A recurrent net whose state is detached between chunks."""

import torch
from torch import nn

rnn = nn.LSTM(512, 1024, batch_first=True).cuda()
head = nn.Linear(1024, 512).cuda()
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()])
state = None
for _ in range(10):
    x = torch.randn(128, 64, 512, device="cuda")
    output, state = rnn(x, state)
    state = tuple(part.detach() for part in state)
    nn.functional.mse_loss(head(output), x).backward()
    optimizer.step()
    optimizer.zero_grad()
