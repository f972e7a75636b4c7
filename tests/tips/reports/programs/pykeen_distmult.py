"""After pykeen/pykeen#1297: own training loop around a DistMult model, link prediction."""

import torch
from torch import nn

CURED = False
ENTITIES, RELATIONS, DIM = 40000, 200, 256


class LpRegularizer(nn.Module):
    def __init__(self, weight=0.1):
        super().__init__()
        self.weight, self.regularization_term = weight, 0.0

    def update(self, *tensors):
        self.regularization_term = self.regularization_term + sum(
            (x**2).sum(-1).mean() for x in tensors
        )

    def pop_regularization_term(self):
        term, self.regularization_term = self.weight * self.regularization_term, 0.0
        return term


class DistMult(nn.Module):
    def __init__(self, regularizer):
        super().__init__()
        self.entity = nn.Embedding(ENTITIES, DIM)
        self.relation = nn.Embedding(RELATIONS, DIM)
        self.regularizer = regularizer

    def score_hrt(self, hrt):
        h, r, t = self.entity(hrt[:, 0]), self.relation(hrt[:, 1]), self.entity(hrt[:, 2])
        self.regularizer.update(h, r, t)
        return (h * r * t).sum(-1)


model = DistMult(LpRegularizer()).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(4):
    epoch_loss = 0.0
    for batch in range(12):
        hrt = torch.randint(0, RELATIONS, (8192, 3)).cuda()
        labels = torch.randint(0, 2, (8192,)).float().cuda()
        loss = criterion(model.score_hrt(hrt), labels)
        if CURED:
            loss = loss + model.regularizer.pop_regularization_term()
        # CURE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    print(epoch, epoch_loss)
