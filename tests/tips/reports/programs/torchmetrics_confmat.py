"""After Lightning-AI/torchmetrics#1279: the accuracy over many classes takes gigabytes."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
CLASSES, FEATURES, BATCH, STEPS = 8142, 512, 256, 4  # iNaturalist 2018


def _bincount(x, minlength):
    return torch.bincount(x, minlength=minlength)


def _multiclass_stat_scores_format(preds, target):
    if preds.ndim == target.ndim + 1:
        preds = preds.argmax(dim=1)
    return preds.flatten(), target.flatten()


def _multiclass_stat_scores_update(preds, target, num_classes, average="macro", ignore_index=None):
    """The true positives, false positives, true negatives and false negatives"""
    if ignore_index is not None:
        keep = target != ignore_index
        preds, target = preds[keep], target[keep]
    if CURED and average == "micro":
        tp = (preds == target).sum()
        fp = (preds != target).sum()
        fn = (preds != target).sum()
        tn = num_classes * preds.numel() - (fp + fn + tp)
        return tp, fp, tn, fn
    unique_mapping = target * num_classes + preds
    bins = _bincount(unique_mapping, minlength=num_classes**2)
    confmat = bins.reshape(num_classes, num_classes)
    tp = confmat.diag()
    fp = confmat.sum(0) - tp
    fn = confmat.sum(1) - tp
    tn = confmat.sum() - (fp + fn + tp)
    return tp, fp, tn, fn


class MulticlassAccuracy(nn.Module):
    def __init__(self, num_classes, average="macro", ignore_index=None):
        super().__init__()
        self.num_classes, self.average, self.ignore_index = num_classes, average, ignore_index
        size = () if average == "micro" else (num_classes,)
        for name in ("tp", "fp", "tn", "fn"):
            self.register_buffer(name, torch.zeros(size, dtype=torch.long))

    def update(self, preds, target):
        preds, target = _multiclass_stat_scores_format(preds, target)
        scores = _multiclass_stat_scores_update(
            preds, target, self.num_classes, self.average, self.ignore_index
        )
        for name, score in zip(("tp", "fp", "tn", "fn"), scores):
            getattr(self, name).add_(score.sum() if self.average == "micro" else score)

    def compute(self):
        accuracy = self.tp / (self.tp + self.fn).clamp(min=1)
        return accuracy if self.average == "micro" else accuracy.mean()

    def forward(self, preds, target):
        self.update(preds, target)
        return self.compute()

    def reset(self):
        for buffer in self.buffers():
            buffer.zero_()


class ResNetClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.Conv2d(64, FEATURES, 4, 4), nn.ReLU()
        )
        self.fc = nn.Linear(FEATURES, CLASSES)
        self.train_acc = MulticlassAccuracy(num_classes=CLASSES, average="micro")

    def forward(self, images):
        return self.fc(self.backbone(images).mean((2, 3)))

    def training_step(self, batch):
        images, target = batch
        logits = self(images)
        loss = F.cross_entropy(logits, target)
        accuracy = self.train_acc(logits.detach(), target)
        return loss, accuracy


model = ResNetClassifier().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(STEPS):
    images, target = torch.randn(BATCH, 3, 64, 64), torch.randint(0, CLASSES, (BATCH,))
    loss, accuracy = model.training_step((images.to(DEVICE), target.to(DEVICE)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), accuracy.item())
model.train_acc.reset()
