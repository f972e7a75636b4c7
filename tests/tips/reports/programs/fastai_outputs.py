"""After a change to fastai's loss_batch: without a loss function the outputs stay on the card."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 21, 1)).cuda()


def loss_batch(model, images, loss_function=None):
    out = model(images)
    if loss_function is None:
        return out.detach().cpu() if CURED else out.detach()
    return loss_function(out)


def validate(model, batches):
    model.eval()
    with torch.no_grad():
        return [loss_batch(model, images) for images in batches]


outputs = validate(model, (torch.randn(8, 3, 224, 224, device="cuda") for _ in range(20)))
# CURE
print(len(outputs))
