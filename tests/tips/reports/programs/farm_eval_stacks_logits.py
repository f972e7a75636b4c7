"""After FARM #61: an evaluation stacks the logits of all batches, and nobody reads them."""

import torch
from torch import nn

CURED = False


class Evaluator:
    def __init__(self, batches):
        self.batches = batches

    def eval(self, model):
        model.eval()
        logits_all, preds_all, loss_all = [], [], 0.0
        for _ in range(self.batches):
            ids = torch.randint(8000, (16, 384), device="cuda")
            with torch.no_grad():
                logits = model(ids)
            if not CURED:
                logits_all.append(logits)
            preds_all += logits.argmax(-1).cpu().tolist()[:1]
            loss_all += float(logits.mean())
        return loss_all / self.batches, len(preds_all)


model = nn.Sequential(nn.Embedding(8000, 256), nn.Linear(256, 256), nn.Linear(256, 3000)).cuda()
Evaluator(60).eval(model)
