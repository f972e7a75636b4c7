"""After validation in large batches nvidia-smi stays high while training."""

import torch
from torch import nn

CURED = False

yolo = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1), nn.SiLU()
).cuda()
optimizer = torch.optim.SGD(yolo.parameters(), lr=0.01)


def train():
    yolo.train()
    for _ in range(3):
        yolo(torch.randn(8, 3, 160, 160, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def validate():
    yolo.eval()
    with torch.no_grad():
        for _ in range(2):
            yolo(torch.randn(32, 3, 640, 640, device="cuda")).amax().item()
    if CURED:
        torch.cuda.empty_cache()


train()
validate()
# CURE
train()
