"""After a report on masked language models: evaluation gathers what nobody reads."""

import torch
from torch import nn

CURED = False


class Gathered:
    def __init__(self):
        self.all_preds = None

    def add(self, logits):
        if CURED:
            return
        joined = logits if self.all_preds is None else torch.cat((self.all_preds, logits))
        self.all_preds = joined


class Trainer:
    def __init__(self, model):
        self.model = model

    def evaluate(self, batches=20):
        gathered, losses = Gathered(), []
        with torch.no_grad():
            for _ in range(batches):
                inputs = torch.randint(8000, (8, 256), device="cuda")
                logits = self.model(inputs)
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), inputs.flatten())
                losses.append(loss.item())
                gathered.add(logits)
        return sum(losses) / len(losses)


trainer = Trainer(nn.Sequential(nn.Embedding(8000, 256), nn.Linear(256, 8000)).cuda().eval())
print(trainer.evaluate())
