"""After fastai's get_preds: a callback gathers predictions and targets on the card."""

import torch
from torch import nn

CURED = False


class GatherPreds:
    def __init__(self):
        self.preds, self.targets = [], []

    def after_batch(self, pred, target):
        self.preds.append(pred.argmax(1).cpu() if CURED else pred)
        self.targets.append(target.cpu() if CURED else target)


class Learner:
    def __init__(self, model):
        self.model, self.callbacks = model, []

    def get_preds(self, batches=40):
        gather = GatherPreds()
        self.callbacks.append(gather)
        with torch.no_grad():
            for _ in range(batches):
                images = torch.randn(16, 3, 128, 128, device="cuda")
                target = torch.randint(12, (16, 128, 128), device="cuda")
                pred = self.model(images)
                for callback in self.callbacks:
                    callback.after_batch(pred, target)
        self.callbacks.remove(gather)
        return gather.preds if CURED else torch.cat(gather.preds).argmax(1)


learn = Learner(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1)).cuda().eval())
labels = learn.get_preds()
