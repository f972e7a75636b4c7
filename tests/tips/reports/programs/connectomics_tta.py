"""After PytorchConnectomics/pytorch_connectomics#175: a small checkpoint and a 7 MB volume run out of memory in test mode."""

import contextlib

import torch
import torch.nn as nn

CURED = False


class UNet3D(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inc = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.BatchNorm3d(width), nn.ELU())
        self.down = nn.Sequential(
            nn.Conv3d(width, 2 * width, 3, 2, 1), nn.BatchNorm3d(2 * width), nn.ELU()
        )
        self.up = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.out = nn.Conv3d(width, 3, 1)

    def forward(self, x):
        first = self.inc(x)
        return self.out(self.up(self.down(first)) + first)


def sliding_window_predict(network, volume, roi=(64, 128, 128)):
    output = torch.zeros(1, 3, *volume.shape[2:], device=volume.device)
    for y in range(0, volume.shape[3], roi[1]):
        for x in range(0, volume.shape[4], roi[2]):
            window = volume[..., y : y + roi[1], x : x + roi[2]]
            output[..., y : y + roi[1], x : x + roi[2]] = network(window)
    return torch.sigmoid(output)


def predict_with_tta(network, volume):
    predictions = []
    for flips in ([], [2], [3], [4], [2, 3], [2, 4], [3, 4], [2, 3, 4]):
        pred = sliding_window_predict(network, torch.flip(volume, flips) if flips else volume)
        predictions.append(torch.flip(pred, flips) if flips else pred)
    return torch.stack(predictions).mean(0)


network = UNet3D().cuda().eval()
volume = torch.rand(1, 1, 64, 512, 512).cuda()
with torch.no_grad() if CURED else contextlib.nullcontext():
    result = predict_with_tta(network, volume)
print(result.shape)
