"""After pytorch-lightning #8028.

A search for the batch size keeps the error that ended it.
"""

import torch
from torch import nn

CURED = False


class Tuner:
    def __init__(self):
        self.trials = []

    def search(self, model, batch):
        while True:
            try:
                self.attempt(model, batch)
            except torch.cuda.OutOfMemoryError as error:
                self.trials.append((batch, str(error) if CURED else error))
                return batch // 2
            batch *= 2

    def attempt(self, model, batch):
        images = torch.randn(batch, 3, 128, 128, device="cuda")
        features = model(images)
        features.square().mean().backward()


net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
).cuda()
tuner = Tuner()
batch_size = tuner.search(net, 64)
net.zero_grad()
# CURE
for _ in range(2):
    net(torch.randn(batch_size // 4, 3, 128, 128, device="cuda")).square().mean().backward()
    net.zero_grad()
