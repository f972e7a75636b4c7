"""After HelmholtzAI-Consultants-Munich/Quicksetup-ai#26: the GPU memory grows during the training epoch until it is full, with large pictures."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class LightningModule(nn.Module):
    """The few things of the real class that the task module below uses."""

    def __init__(self):
        super().__init__()
        self.logged = {}

    def log(self, name, value, **kwargs):
        self.logged[name] = float(value)

    def training_epoch_end(self, outputs):
        pass

    def validation_epoch_end(self, outputs):
        pass


class Dice:
    """A metric with two running sums."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.intersection, self.total = 0.0, 0.0

    def __call__(self, preds, targets):
        intersection, total = (preds * targets).sum().item(), (preds.sum() + targets.sum()).item()
        self.intersection, self.total = self.intersection + intersection, self.total + total
        return (2 * intersection + 1e-6) / (total + 1e-6)

    def compute(self):
        return (2 * self.intersection + 1e-6) / (self.total + 1e-6)


class UNet(nn.Module):
    def __init__(self, widths=(16, 32, 64)):
        super().__init__()
        block = lambda a, b: nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True)
        )
        self.stem = block(1, widths[0])
        self.down = nn.ModuleList([block(a, b) for a, b in zip(widths, widths[1:])])
        self.up = nn.ModuleList(
            [block(a + b, a) for a, b in reversed(list(zip(widths, widths[1:])))]
        )
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        x, skips = self.stem(x), []
        for block in self.down:
            skips.append(x)
            x = block(F.max_pool2d(x, 2))
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], dim=1))
        return self.head(x)


class SegmentationTaskModule(LightningModule):
    def __init__(self, net, lr=0.001, weight_decay=0.0005):
        super().__init__()
        self.net, self.lr, self.weight_decay = net, lr, weight_decay
        self.criterion = nn.BCEWithLogitsLoss()
        self.train_dice, self.val_dice = Dice(), Dice()

    def forward(self, x):
        return self.net(x)

    def step(self, batch):
        x, y = batch
        logits = self.forward(x)
        loss = self.criterion(logits, y)
        preds = torch.sigmoid(logits)
        return loss, preds, y

    def training_step(self, batch, batch_idx):
        loss, preds, targets = self.step(batch)
        dice = self.train_dice(preds.detach(), targets)
        self.log("train/loss", loss, on_step=False, on_epoch=True, prog_bar=False)
        self.log("train/dice", dice, on_step=False, on_epoch=True, prog_bar=True)
        # we can return here dict with any tensors and then read it in some callback or in training_epoch_end() below
        # remember to always return loss from training_step() or else backpropagation will fail!
        if CURED:
            return {"loss": loss}
        return {"loss": loss, "preds": preds, "targets": targets}

    def training_epoch_end(self, outputs):
        # `outputs` is a list of dicts returned from `training_step()`
        self.log("train/dice_epoch", self.train_dice.compute())
        self.train_dice.reset()

    def validation_step(self, batch, batch_idx):
        loss, preds, targets = self.step(batch)
        self.log("val/loss", loss)
        self.log("val/dice", self.val_dice(preds, targets))
        return {"loss": loss}

    def configure_optimizers(self):
        return torch.optim.Adam(
            params=self.parameters(), lr=self.lr, weight_decay=self.weight_decay
        )


def recursive_detach(value):
    return {k: v.detach() for k, v in value.items()} if isinstance(value, dict) else value.detach()


class Trainer:
    """Keeps what the steps return for the end of the epoch, as the real trainer does when the hook is overridden."""

    def __init__(self, max_epochs):
        self.max_epochs = max_epochs

    def fit(self, model, datamodule):
        optimizer = model.configure_optimizers()
        for epoch in range(self.max_epochs):
            model.train()
            outputs = []
            for batch_idx, batch in enumerate(datamodule.train_dataloader()):
                batch = tuple(t.to(DEVICE) for t in batch)
                output = model.training_step(batch, batch_idx)
                optimizer.zero_grad()
                output["loss"].backward()
                optimizer.step()
                outputs.append(recursive_detach(output))
                del output, batch
            model.training_epoch_end(outputs)
            del outputs
            model.eval()
            with torch.no_grad():
                val_outputs = []
                for batch_idx, batch in enumerate(datamodule.val_dataloader()):
                    val_outputs.append(
                        model.validation_step(tuple(t.to(DEVICE) for t in batch), batch_idx)
                    )
                model.validation_epoch_end(val_outputs)
            print(f"epoch {epoch}: {model.logged}")


class DataModule:
    def __init__(self, batch_size=4, size=512):
        self.batch_size, self.size = batch_size, size

    def batches(self, n):
        for _ in range(n):
            x = torch.rand(self.batch_size, 1, self.size, self.size)
            yield x, (x > 0.7).float()

    def train_dataloader(self):
        return self.batches(30)

    def val_dataloader(self):
        return self.batches(4)


def main():
    model = SegmentationTaskModule(UNet()).to(DEVICE)
    Trainer(max_epochs=2).fit(model, DataModule())


if __name__ == "__main__":
    main()
