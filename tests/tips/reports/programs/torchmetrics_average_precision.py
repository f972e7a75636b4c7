"""After torchmetrics #3294.

A metric that needs all scores keeps every batch on the card.
"""

import torch
from torch import nn

CURED = False


class AveragePrecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.preds, self.target = [], []

    def forward(self, preds, target):
        if CURED:
            preds, target = preds.cpu(), target.cpu()
        self.preds.append(preds)
        self.target.append(target)
        return preds[:1].float().mean()

    def compute(self):
        preds, target = torch.cat(self.preds), torch.cat(self.target)
        return (preds * target).sum(0) / len(preds)


tagger = nn.Linear(256, 512).cuda()
precision = AveragePrecision().cuda()
optimizer = torch.optim.Adam(tagger.parameters())
for _ in range(20):
    words = torch.randn(8192, 256, device="cuda")
    labels = torch.randint(0, 2, (8192, 512), device="cuda").float()
    scores = tagger(words)
    loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    precision(scores.detach().sigmoid(), labels)
# CURE
