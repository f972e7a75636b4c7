"""After pytorch-image-models #80.

Validation takes several times the batch of training and runs out of memory.
"""

import torch
from torch import nn

CURED = False
# CURE

net = nn.Sequential(
    nn.Conv2d(3, 96, 3, padding=1),
    nn.BatchNorm2d(96),
    nn.ReLU(),
    nn.Conv2d(96, 96, 3, padding=1),
    nn.BatchNorm2d(96),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(96, 1000),
).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
batch_size = 48
validation_batch = batch_size if CURED else 8 * batch_size
# CURE
for epoch in range(2):
    net.train()
    for _ in range(3):
        net(torch.randn(batch_size, 3, 224, 224, device="cuda")).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    net.eval()
    with torch.no_grad():
        for _ in range(2):
            net(torch.randn(validation_batch, 3, 224, 224, device="cuda")).argmax(-1).cpu()
