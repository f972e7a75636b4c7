"""After pytorch-lightning #8430.

Cross validation: every fold's model and optimizer stay in a list.
"""

import torch
from torch import nn

CURED = False


class Fold:
    def __init__(self):
        self.model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.score = 0.0

    def fit(self):
        for _ in range(3):
            loss = self.model(torch.randn(512, 1024, device="cuda")).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.score = loss.item()


folds = []
for number in range(5):
    fold = Fold()
    fold.fit()
    if CURED:
        fold.model, fold.optimizer = fold.model.cpu(), None
    folds.append(fold)
del fold
print("mean score", sum(fold.score for fold in folds) / len(folds))
# CURE
