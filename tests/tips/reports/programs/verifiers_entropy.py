"""After PrimeIntellect-ai/verifiers#662: the RL trainer needs more memory than the forward and backward should."""

import contextlib

import torch
import torch.nn as nn

CURED = False
VOCAB = 151936


class Policy(nn.Module):
    def __init__(self, dim=256, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 4 * dim, batch_first=True) for _ in range(layers)
        )
        self.lm_head = nn.Linear(dim, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


def entropy_from_logits(logits, chunk_size=256):
    entropies = []
    for chunk in logits.reshape(-1, logits.shape[-1]).split(chunk_size):
        logps = torch.log_softmax(chunk, dim=-1)
        entropies.append(-(torch.exp(logps) * logps).sum(-1))
    return torch.cat(entropies).view(logits.shape[:-1])


def compute_loss(model, ids, advantages):
    logits = model(ids)[:, :-1]
    logprobs = -nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    with torch.no_grad() if CURED else contextlib.nullcontext():
        entropies = entropy_from_logits(logits)
    loss = -(logprobs * advantages[:, None]).mean()
    return loss, {"entropy": entropies.detach().mean()}


model = Policy().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
for step in range(3):
    ids = torch.randint(0, VOCAB, (1, 1024)).cuda()
    loss, metrics = compute_loss(model, ids, torch.ones(1).cuda())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
