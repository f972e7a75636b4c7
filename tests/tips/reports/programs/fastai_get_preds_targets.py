"""After fastai/fastai#2337: learn.get_preds(DatasetType.Valid) goes out of memory on a big validation set."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CURED = False
DEVICE = "cuda"


def is_listy(x):
    return isinstance(x, (tuple, list))


def to_device(b, device):
    return [to_device(o, device) for o in b] if is_listy(b) else b.to(device)


def to_detach(b, cpu=True):
    if is_listy(b):
        return [to_detach(o, cpu) for o in b]
    b = b.detach()
    return b.cpu() if cpu else b


class SegmentationItems(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.rand(3, self.size, self.size), torch.randint(0, 2, (1, self.size, self.size))


class DeviceDataLoader:
    def __init__(self, dl, device):
        self.dl, self.device = dl, device

    def __len__(self):
        return len(self.dl)

    def __iter__(self):
        for b in self.dl:
            yield to_device(b, self.device)


def loss_batch(model, xb, yb, loss_func=None, opt=None):
    if not is_listy(xb):
        xb = [xb]
    if not is_listy(yb):
        yb = [yb]
    out = model(*xb)
    if not loss_func:
        return to_detach(out), (to_detach(yb[0]) if CURED else yb[0].detach())
    loss = loss_func(out, *yb)
    if opt is not None:
        loss.backward()
        opt.step()
        opt.zero_grad()
    return loss.detach().cpu()


def validate(model, dl, loss_func=None):
    model.eval()
    with torch.no_grad():
        return [loss_batch(model, xb, yb, loss_func) for xb, yb in dl]


def get_preds(model, dl, activ=None):
    res = [torch.cat(o) for o in zip(*validate(model, dl))]
    if activ is not None:
        res[0] = activ(res[0])
    return res


class DynamicUnet(nn.Module):
    def __init__(self, nf=12):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, nf, 3, 2, 1), nn.BatchNorm2d(nf), nn.ReLU())
        self.down2 = nn.Sequential(
            nn.Conv2d(nf, 2 * nf, 3, 2, 1), nn.BatchNorm2d(2 * nf), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(2 * nf, nf, 2, 2)
        self.head = nn.Conv2d(2 * nf, 2, 1)

    def forward(self, x):
        d1 = self.down1(x)
        u = torch.cat([self.up(self.down2(d1)), d1], 1)
        return F.interpolate(self.head(u), scale_factor=2)


def seg_loss(out, target):
    return F.cross_entropy(out, target.squeeze(1))


class Learner:
    def __init__(self, train_dl, valid_dl, model, loss_func):
        self.train_dl, self.valid_dl = train_dl, valid_dl
        self.model, self.loss_func = model.to(DEVICE), loss_func

    def fit(self, epochs, lr=1e-3):
        opt = torch.optim.AdamW(self.model.parameters(), lr=lr)
        for epoch in range(epochs):
            self.model.train()
            losses = [
                loss_batch(self.model, xb, yb, self.loss_func, opt) for xb, yb in self.train_dl
            ]
            val = validate(self.model, self.valid_dl, self.loss_func)
            print(
                f"epoch {epoch} train {torch.stack(losses).mean().item():.4f} valid {torch.stack(val).mean().item():.4f}"
            )

    def get_preds(self):
        return get_preds(self.model, self.valid_dl, activ=lambda o: o.softmax(1)[:, 1:])


def main():
    train_dl = DeviceDataLoader(DataLoader(SegmentationItems(16, 448), batch_size=8), DEVICE)
    valid_dl = DeviceDataLoader(DataLoader(SegmentationItems(184, 448), batch_size=8), DEVICE)
    learn = Learner(train_dl, valid_dl, DynamicUnet(), seg_loss)
    learn.fit(1)
    preds, targs = learn.get_preds()
    print(f"preds {tuple(preds.shape)} targs {tuple(targs.shape)}")
    return learn, preds, targs


if __name__ == "__main__":
    learn, preds, targs = main()
    best = max((0.3, 0.4, 0.5), key=lambda t: t)
    print(f"threshold {best}, foreground {targs.float().mean().item():.3f}")
