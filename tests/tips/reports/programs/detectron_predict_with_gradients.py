"""After detectron2 #1539.

A detector in eval mode predicts a large batch with gradients on.
"""

import torch
from torch import nn

CURED = False


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=4, padding=3)
        self.blocks = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(8))
        self.boxes = nn.Conv2d(64, 20, 1)

    def forward(self, images):
        x = self.stem(images).relu()
        for block in self.blocks:
            x = x + block(x).relu()
        return self.boxes(x)


def predict(model, images):
    return model(images).flatten(2).amax(-1)


model = Backbone().cuda()
model.train(False)
# CURE
if CURED:
    torch.set_grad_enabled(False)
images = torch.randn(20, 3, 800, 800, device="cuda")
answers = predict(model, images)
print(answers.shape)
