"""A small language model is trained, and samples a text after each epoch without a graph."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5000, 384)
        layer = nn.TransformerEncoderLayer(384, 6, 1536, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(384, 5000)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.body(self.embed(ids), mask=mask, is_causal=True))


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    for _ in range(3):
        ids = torch.randint(5000, (16, 128), device="cuda")
        logits = model(ids)
        nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        del logits
    with torch.no_grad():
        text = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        for _ in range(12):
            text = torch.cat([text, model(text)[:, -1:].argmax(-1)], 1)
