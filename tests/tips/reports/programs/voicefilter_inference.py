"""After voicefilter #6: one recording is filtered, and nothing switches gradients off."""

import contextlib

import torch
from torch import nn

CURED = False


class VoiceFilter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(1 if i == 0 else 64, 64, 5, padding=2), nn.ReLU())
                for i in range(5)
            ],
            nn.Conv2d(64, 8, 1),
        )
        self.lstm = nn.LSTM(8 * 601, 400, batch_first=True)
        self.fc = nn.Linear(400, 601)

    def forward(self, spectrum):
        x = self.conv(spectrum.unsqueeze(1)).transpose(1, 2).flatten(2)
        return torch.sigmoid(self.fc(self.lstm(x)[0]))


def main():
    model = VoiceFilter().cuda()
    model.eval()
    mixed = torch.randn(1, 600, 601, device="cuda").abs()
    mask = model(mixed)
    return (mixed * mask).cpu().detach()


# CURE
with torch.no_grad() if CURED else contextlib.nullcontext():
    filtered = main()
