"""The next batch is copied on a side stream while this one trains."""

import torch
from torch import nn

side = torch.cuda.Stream()
model = nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def fetch():
    with torch.cuda.stream(side):
        return torch.randn(4096, 2048).cuda(non_blocking=True)


batch = fetch()
for _ in range(6):
    torch.cuda.current_stream().wait_stream(side)
    now, batch = batch, fetch()
    model(now).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
