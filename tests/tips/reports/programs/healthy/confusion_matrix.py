"""A confusion matrix on the card that every batch adds to."""

import torch
from torch import nn

net = nn.Conv2d(3, 19, 3, padding=1).cuda().eval()
confusion = torch.zeros(19 * 19, device="cuda")
with torch.no_grad():
    for _ in range(8):
        guess = net(torch.randn(4, 3, 512, 512, device="cuda")).argmax(1).flatten()
        truth = torch.randint(0, 19, guess.shape, device="cuda")
        confusion.index_add_(0, truth * 19 + guess, torch.ones_like(guess, dtype=torch.float32))
print(confusion.view(19, 19).diag().sum().item())
