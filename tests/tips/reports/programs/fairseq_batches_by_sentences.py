"""After fairseq #2545.

A batch counts sentences, not tokens: one of long ones does not fit.
"""

import torch
from torch import nn

CURED = False


class Model(nn.Module):
    def __init__(self, vocabulary=32000):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 512)
        self.layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
        self.head = nn.Linear(512, vocabulary)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)))


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters())
lengths = [40, 55, 63, 48, 71, 900, 52, 66]
max_tokens = 6000
for length in lengths:
    batch_size = max_tokens // length if CURED else 96
    # CURE
    tokens = torch.randint(0, 32000, (batch_size, length), device="cuda")
    scores = model(tokens)
    nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
