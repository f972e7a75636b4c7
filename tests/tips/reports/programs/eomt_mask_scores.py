"""After eomt #12.

Scores of a hundred masks at the size of the picture, several copies.
"""

import torch
from torch import nn

CURED = False


def mask_scores(logits):
    masks = (logits > 0).float()
    inside = logits.sigmoid().flatten(1) * masks.flatten(1)
    return inside.sum(1) / (masks.flatten(1).sum(1) + 1e-6)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.queries = nn.Linear(64, 100)

    def forward(self, features):
        return self.queries(features.permute(1, 2, 0)).permute(2, 0, 1)


head = Head().cuda().eval()
# CURE
with torch.no_grad():
    for height, width in ((512, 640), (1500, 2000)):
        small = head(torch.randn(64, height // 4, width // 4, device="cuda"))
        logits = nn.functional.interpolate(small[None], size=(height, width), mode="bilinear")[0]
        if CURED:
            scores = torch.cat([mask_scores(part) for part in logits.split(4)])
        else:
            scores = mask_scores(logits)
        best = scores.topk(10).indices.cpu()
