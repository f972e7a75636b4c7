"""After Biodiversity #662: pictures are classified in batches, with gradients, and joined."""

import contextlib

import torch
from torch import nn

CURED = False


class Classifier:
    def __init__(self):
        self.model = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=4, padding=3),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 36),
        ).cuda()
        self.model.eval()

    def batch_image_classification(self, batches):
        total_logits = []
        for images in batches:
            with torch.no_grad() if CURED else contextlib.nullcontext():
                total_logits.append(self.model(images.cuda()))
        return torch.cat(total_logits, dim=0).cpu()


classifier = Classifier()
logits = classifier.batch_image_classification(torch.randn(16, 3, 224, 224) for _ in range(12))
# CURE
