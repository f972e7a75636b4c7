"""After bytedance/UNO#64: GPU memory grows with every training step until it runs out."""

import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CURED = False
DEVICE = "cuda"
PAIRS, BATCH_SIZE, RESOLUTION, RESOLUTION_REF, MAX_TRAIN_STEPS = 48, 4, 704, 448, 10
HIDDEN, HEADS, DEPTH, TEXT = 256, 8, 4, 64


class FluxPairedDatasetV2(Dataset):
    """A picture, its prompt and two pictures of the subjects in it"""

    def __len__(self):
        return PAIRS

    def __getitem__(self, idx):
        ref_imgs = [torch.rand(3, RESOLUTION_REF, RESOLUTION_REF) * 2 - 1 for _ in range(2)]
        img = torch.rand(3, RESOLUTION, RESOLUTION) * 2 - 1
        return {"img": img, "txt": torch.randint(0, 1000, (TEXT,)), "ref_imgs": ref_imgs}

    def collate_fn(self, batch):
        img, txt = (torch.stack([data[key] for data in batch]) for key in ("img", "txt"))
        ref_imgs = [torch.stack(refs) for refs in zip(*(data["ref_imgs"] for data in batch))]
        return {"img": img, "txt": txt, "ref_imgs": ref_imgs}


class DataLoaderShard:
    """A data loader whose batches are on the device of this process"""

    def __init__(self, dataloader, device):
        self.dataloader, self.device = dataloader, device

    def send_to_device(self, data):
        if isinstance(data, dict):
            return {key: self.send_to_device(value) for key, value in data.items()}
        if isinstance(data, list):
            return [self.send_to_device(value) for value in data]
        return data.to(self.device)

    def __iter__(self):
        for batch in self.dataloader:
            yield self.send_to_device(batch)


def repeat(dataloader):
    while True:
        yield from dataloader


class Flux(nn.Module):
    def __init__(self):
        super().__init__()
        self.img_in, self.txt_in = nn.Linear(64, HIDDEN), nn.Embedding(1000, HIDDEN)
        self.time_in = nn.Linear(1, HIDDEN)
        layers = [
            nn.TransformerEncoderLayer(
                HIDDEN, HEADS, 4 * HIDDEN, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(DEPTH)
        ]
        self.blocks, self.final_layer = nn.ModuleList(layers), nn.Linear(HIDDEN, 64)

    def forward(self, img, ref_img, txt, timesteps):
        x = torch.cat([self.img_in(part) for part in (img, *ref_img)], 1)
        x = torch.cat([self.txt_in(txt), x], 1) + self.time_in(timesteps[:, None])[:, None]
        for block in self.blocks:
            x = block(x)
        return self.final_layer(x[:, TEXT : TEXT + img.shape[1]])


def rearrange(x):
    """b c (h ph) (w pw) -> b (h w) (c ph pw)"""
    return F.pixel_unshuffle(x, 2).flatten(2).transpose(1, 2)


vae = nn.Conv2d(3, 16, 16, 16).to(DEVICE).requires_grad_(False)  # the encoder
dit = Flux().to(DEVICE)
optimizer = torch.optim.AdamW(dit.parameters(), lr=1e-4)
dataset = FluxPairedDatasetV2()
dataloader = DataLoader(dataset, BATCH_SIZE, shuffle=True, collate_fn=dataset.collate_fn)
dataloader = DataLoaderShard(dataloader, DEVICE)
dataloader = repeat(dataloader) if CURED else itertools.cycle(dataloader)

global_step = 0
while global_step < MAX_TRAIN_STEPS:
    batch = next(dataloader)
    with torch.no_grad():
        x_1 = rearrange(vae(batch["img"]))
        x_ref = [rearrange(vae(ref_img)) for ref_img in batch["ref_imgs"]]
        t = torch.rand(len(x_1), device=DEVICE)
        x_0 = torch.randn_like(x_1)
        x_t = (1 - t[:, None, None]) * x_1 + t[:, None, None] * x_0
    model_pred = dit(x_t, x_ref, batch["txt"], t)
    loss = F.mse_loss(model_pred, x_0 - x_1)
    loss.backward()
    nn.utils.clip_grad_norm_(dit.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    global_step += 1
    print(global_step, loss.item())
