"""After pytorch-softdtw-cuda #23: both sequences are expanded against one another."""

import torch
from torch import nn

CURED = False


def euclidean(x, y):
    if CURED:
        x_norm = (x**2).sum(-1).unsqueeze(-1)
        y_norm = (y**2).sum(-1).unsqueeze(-2)
        return (x_norm + y_norm - 2.0 * torch.bmm(x, y.mT)).clamp(min=0)
    n, m, d = x.size(1), y.size(1), x.size(2)
    x = x.unsqueeze(2).expand(-1, n, m, d)
    y = y.unsqueeze(1).expand(-1, n, m, d)
    return torch.pow(x - y, 2).sum(3)


net = nn.GRU(32, 64, batch_first=True).cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    predicted, _ = net(torch.randn(48, 384, 32, device="cuda"))
    wanted = torch.randn(48, 384, 64, device="cuda")
    distances = euclidean(predicted, wanted)
    distances.min(-1)[0].mean().backward()
    optimizer.step()
    optimizer.zero_grad()
