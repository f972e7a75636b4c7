"""After KevinMusgrave/pytorch-metric-learning#203: the NT-Xent loss of 512 small embeddings runs out of memory."""

import torch
import torch.nn as nn

CURED = False


def get_all_pairs_indices(labels):
    matches = labels.unsqueeze(1) == labels.unsqueeze(0)
    diffs = ~matches
    matches.fill_diagonal_(False)
    a1, p = torch.where(matches)
    a2, n = torch.where(diffs)
    return a1.cuda(), p.cuda(), a2.cuda(), n.cuda()


class NTXentLoss(nn.Module):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.temperature = temperature

    def forward(self, embeddings, labels, indices_tuple=None):
        a1, p, a2, n = indices_tuple or get_all_pairs_indices(labels)
        sim = nn.functional.normalize(embeddings) @ nn.functional.normalize(embeddings).T
        pos_pairs = sim[a1, p].unsqueeze(1) / self.temperature
        neg_pairs = sim[a2, n] / self.temperature
        n_per_p = (a2.unsqueeze(0) == a1.unsqueeze(1)).float()
        neg_pairs = neg_pairs * n_per_p
        max_val = torch.max(pos_pairs, neg_pairs.max(1, keepdim=True)[0]).detach()
        numerator = torch.exp(pos_pairs - max_val).squeeze(1)
        denominator = (torch.exp(neg_pairs - max_val) * n_per_p).sum(1) + numerator
        return -torch.log(numerator / denominator + 1e-8).mean()


projector = nn.Linear(2048, 128).cuda()
nxt_loss = NTXentLoss(temperature=0.5)
pos_pair = projector(torch.randn(256, 2048, device="cuda"))
neg_pair = projector(torch.randn(256, 2048, device="cuda"))
embeddings = torch.cat([pos_pair, neg_pair], dim=0)
labels = torch.cat([torch.zeros(256), torch.arange(1, 257)]).long()
indices = None
if CURED:
    i = torch.arange(256, device="cuda")
    indices = (i, (i + 1) % 256, i, i + 256)
loss = nxt_loss(embeddings, labels, indices)
loss.backward()
