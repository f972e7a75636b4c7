"""After WhisperLiveKit #275.

A hook for word times keeps the cross attention of every token.
"""

import torch
from torch import nn

CURED = False


class CrossAttention(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.query = nn.Linear(width, width)

    def forward(self, token, audio):
        weights = (self.query(token) @ audio.transpose(-2, -1)).softmax(-1)
        return weights @ audio, weights


class Decoder:
    def __init__(self):
        self.layer = CrossAttention().cuda().eval()
        self.weights = []
        self.layer.register_forward_hook(lambda module, inputs, output: self.keep(output[1]))

    def keep(self, weights):
        self.weights.append(weights)
        if CURED:
            del self.weights[:-4]

    @torch.no_grad()
    def decode(self, chunk):
        token = torch.zeros(40, 8, 512, device="cuda")
        for _ in range(20):
            token, _ = self.layer(token, chunk)
        return token[:, -1].argmax(-1).cpu()


decoder = Decoder()
text = [decoder.decode(torch.randn(40, 1500, 512, device="cuda")) for _ in range(6)]
# CURE
