"""After fastai's course: the language model's learner stays when the classifier is trained."""

import torch
from torch import nn

CURED = False


class Learner:
    def __init__(self, model):
        self.model = model.cuda()
        self.opt = torch.optim.Adam(self.model.parameters())

    def fit(self, outputs, steps=3):
        for _ in range(steps):
            tokens = torch.randint(20000, (32, 64), device="cuda")
            scores = self.model(tokens).flatten(0, 1)
            labels = torch.randint(outputs, (len(scores),), device="cuda")
            nn.functional.cross_entropy(scores, labels).backward()
            self.opt.step()
            self.opt.zero_grad()


encoder = nn.Sequential(nn.Embedding(20000, 512), nn.Linear(512, 1024), nn.ReLU())
learn = Learner(nn.Sequential(encoder, nn.Linear(1024, 20000)))
learn.fit(20000)
if CURED:
    learn = None
encoder = nn.Sequential(nn.Embedding(20000, 512), nn.Linear(512, 1024), nn.ReLU())
classifier = Learner(nn.Sequential(encoder, nn.Linear(1024, 2)))
classifier.fit(2)
# CURE
