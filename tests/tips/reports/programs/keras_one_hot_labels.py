"""After keras #22169: the loss of sparse labels makes a one-hot matrix of them first."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False


def sparse_categorical_crossentropy(target, output):
    if CURED:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())
    log_prob = F.log_softmax(output, dim=-1)
    one_hot = F.one_hot(target, output.shape[-1]).to(output.dtype)
    return -(one_hot * log_prob).sum(-1).mean()


model = nn.Sequential(nn.Embedding(50000, 256), nn.Linear(256, 50000)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    ids = torch.randint(50000, (8, 512), device="cuda")
    loss = sparse_categorical_crossentropy(ids.roll(-1, 1), model(ids))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
