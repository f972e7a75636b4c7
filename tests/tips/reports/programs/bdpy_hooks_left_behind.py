"""After bdpy #72.

Each reconstruction adds an extractor whose hook stays in the encoder.
"""

import torch
from torch import nn

CURED = False


class FeatureExtractor:
    def __init__(self, encoder):
        self.features = {}
        self.handles = [encoder[0].register_forward_hook(self.keep)]

    def keep(self, module, inputs, output):
        self.features[module] = output / output.norm()

    def run(self, encoder, image):
        encoder(image)
        return self.features[encoder[0]]

    def close(self):
        for handle in self.handles:
            handle.remove()


def reconstruct(encoder):
    extractor = FeatureExtractor(encoder)
    image = torch.zeros(8, 3, 224, 224, device="cuda", requires_grad=True)
    for _ in range(2):
        extractor.run(encoder, image).square().mean().backward()
    if CURED:
        extractor.close()
    return image.detach().cpu()


encoder = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 8, 1)).cuda()
encoder.requires_grad_(False)
pictures = [reconstruct(encoder) for _ in range(8)]
# CURE
