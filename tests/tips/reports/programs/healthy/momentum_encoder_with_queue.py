"""MoCo: a second encoder that follows the first, and a queue of fixed size."""

import copy

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 128)).cuda()
follower = copy.deepcopy(encoder).requires_grad_(False)
queue = torch.randn(128, 65536, device="cuda")
place = 0
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
for _ in range(8):
    images = torch.randn(256, 3072, device="cuda")
    query = nn.functional.normalize(encoder(images), dim=1)
    with torch.no_grad():
        for slow, fast in zip(follower.parameters(), encoder.parameters()):
            slow.lerp_(fast, 0.001)
        key = nn.functional.normalize(follower(images), dim=1)
    scores = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.clone()], 1) / 0.07
    target = torch.zeros(256, dtype=torch.long, device="cuda")
    nn.functional.cross_entropy(scores, target).backward()
    optimizer.step()
    optimizer.zero_grad()
    queue[:, place : place + 256] = key.T
    place = (place + 256) % 65536
