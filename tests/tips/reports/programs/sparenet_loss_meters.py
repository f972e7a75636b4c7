"""After SpareNet #12: meters average the losses of an epoch for the plots."""

import torch
from torch import nn

CURED = False


class Meter:
    def __init__(self, names):
        self.sums = dict.fromkeys(names, 0.0)
        self.count = 0

    def update(self, values):
        for name, value in zip(self.sums, values, strict=True):
            self.sums[name] = self.sums[name] + value
        self.count += 1


class Completion(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 512), nn.ReLU(), nn.Linear(512, 512))
        self.coarse = nn.Linear(512, 3)
        self.refine = nn.Sequential(nn.Linear(515, 512), nn.ReLU(), nn.Linear(512, 3))

    def forward(self, points):
        code = self.encoder(points)
        coarse = self.coarse(code)
        return coarse, self.refine(torch.cat([code, coarse], -1))


def run_epoch(model, optimizer, meter):
    for _ in range(12):
        points = torch.randn(8, 2048, 3, device="cuda")
        coarse, fine = model(points)
        loss_coarse = (coarse - points).square().mean()
        loss_fine = (fine - points).square().mean()
        optimizer.zero_grad()
        (loss_coarse + loss_fine).backward()
        optimizer.step()
        with torch.no_grad():
            kept = [loss_coarse.item(), loss_fine.item()]
        # The terms of the regularizer are only looked at.
        smooth = model(points)[1].diff(dim=1).square().mean()
        meter.update([*kept, smooth.item() if CURED else smooth])
        # CURE


model = Completion().cuda()
optimizer = torch.optim.Adam(model.parameters())
meter = Meter(["coarse", "fine", "smooth"])
run_epoch(model, optimizer, meter)
