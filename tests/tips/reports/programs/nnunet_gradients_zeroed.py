"""After nnU-Net #1630: gradients are set to zero and so lie on the card through each forward."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(
    nn.Conv3d(1, 512, 3, padding=1, stride=8),
    nn.LeakyReLU(),
    nn.Conv3d(512, 2048, 3, padding=1, stride=2),
    nn.LeakyReLU(),
    nn.Conv3d(2048, 32, 1),
    nn.Upsample(scale_factor=16),
    nn.Conv3d(32, 32, 3, padding=1),
    nn.LeakyReLU(),
    nn.Conv3d(32, 4, 1),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99)


def train_step(data, target):
    optimizer.zero_grad(set_to_none=CURED)
    loss = (model(data) - target).square().mean()
    loss.backward()
    optimizer.step()
    # CURE
    return loss.item()


for _ in range(5):
    train_step(
        torch.randn(2, 1, 96, 96, 96, device="cuda"), torch.randn(2, 4, 96, 96, 96, device="cuda")
    )
