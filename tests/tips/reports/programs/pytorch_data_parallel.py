"""After a report on two cards: the first one holds all outputs of a segmentation."""

import torch
from torch import nn

CURED = False


class Segmentation(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 21, 1))

    def forward(self, images, labels=None):
        scores = self.body(images)
        if labels is None:
            return scores
        return nn.functional.cross_entropy(scores, labels).view(1)


model = nn.DataParallel(Segmentation().cuda(), device_ids=[0, 1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    images = torch.randn(16, 3, 512, 512, device="cuda")
    labels = torch.randint(21, (16, 512, 512), device="cuda")
    optimizer.zero_grad()
    if CURED:
        loss = model(images, labels).mean()
    else:
        loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
