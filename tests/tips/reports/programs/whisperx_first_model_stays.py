"""After whisperX #89.

The transcribing model stays on the card while another one aligns.
"""

import torch
from torch import nn

CURED = False


class Whisper(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(60)])

    def forward(self, x):
        return self.blocks(x)


class Aligner(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Conv1d(512, 512, 3, padding=1) for _ in range(12)])

    def forward(self, x):
        return self.blocks(x)


whisper = Whisper().cuda().eval()
with torch.no_grad():
    segments = [whisper(torch.randn(64, 2048, device="cuda")).cpu() for _ in range(4)]
if CURED:
    del whisper
# CURE
aligner = Aligner().cuda().eval()
with torch.no_grad():
    words = [aligner(torch.randn(8, 512, 3000, device="cuda")).cpu() for _ in segments]
