"""After a forum question: losses of sequences of different lengths are summed for one backward."""

import torch
from torch import nn

CURED = False
rnn = nn.GRU(64, 1024, batch_first=True).cuda()
head = nn.Linear(1024, 5000).cuda()
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()])
for _ in range(2):
    optimizer.zero_grad()
    loss = 0
    for length in range(100, 580, 20):
        sequence = torch.randn(1, length, 64, device="cuda")
        target = torch.randint(5000, (length,), device="cuda")
        part = nn.functional.cross_entropy(head(rnn(sequence)[0][0]), target)
        if CURED:
            part.backward()
        else:
            loss = loss + part
    if not CURED:
        loss.backward()
    optimizer.step()
