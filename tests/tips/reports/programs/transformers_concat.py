"""After a report on Trainer's evaluation: the logits are joined batch by batch."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(nn.Embedding(5000, 512), nn.Linear(512, 5000)).cuda().eval()
preds_host = None
with torch.no_grad():
    for _ in range(120):
        inputs = torch.randint(5000, (8, 512), device="cuda")
        logits = model(inputs)
        if CURED:
            logits = logits.argmax(-1)
        preds_host = logits if preds_host is None else torch.cat((preds_host, logits))
print(preds_host.shape)
