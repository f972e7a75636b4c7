"""After bennyguo/instant-nsr-pl#64: with many large training pictures the run is out of memory before the model has done anything."""

from dataclasses import dataclass
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


@dataclass
class DatasetConfig:
    num_images: int = 40
    height: int = 1200
    width: int = 1600
    img_downscale: int = 2
    load_data_on_gpu: bool = not CURED


def get_ray_directions(W, H, fx, fy, cx, cy):
    i, j = torch.meshgrid(
        torch.arange(W, dtype=torch.float32) + 0.5,
        torch.arange(H, dtype=torch.float32) + 0.5,
        indexing="xy",
    )
    return torch.stack([(i - cx) / fx, -(j - cy) / fy, -torch.ones_like(i)], -1)  # (H, W, 3)


def get_rays(directions, c2w):
    rays_d = (directions[:, None, :] * c2w[:, :3, :3]).sum(-1)
    rays_o = c2w[:, :, 3].expand(rays_d.shape)
    return rays_o, rays_d


class ColmapDatasetBase:
    # the data only has to be processed once
    initialized = False
    properties = {}

    def setup(self, config, split):
        self.config, self.split, self.rank = config, split, DEVICE
        if not ColmapDatasetBase.initialized:
            w, h = (
                int(config.width / config.img_downscale + 0.5),
                int(config.height / config.img_downscale + 0.5),
            )
            fx = fy = 0.8 * w
            directions = get_ray_directions(w, h, fx, fy, w / 2, h / 2).to(self.rank)
            all_c2w, all_images, all_fg_masks = [], [], []
            for i in range(config.num_images):
                theta = 2 * math.pi * i / config.num_images
                c2w = torch.tensor(
                    [
                        [math.cos(theta), 0, math.sin(theta), math.sin(theta)],
                        [0, 1, 0, 0.2],
                        [-math.sin(theta), 0, math.cos(theta), math.cos(theta)],
                    ]
                ).float()
                all_c2w.append(c2w)
                img = (
                    torch.randint(0, 256, (h, w, 3), dtype=torch.uint8).float() / 255
                )  # the picture, read and resized
                mask = torch.ones_like(img[..., 0])
                all_fg_masks.append(mask)  # (h, w)
                all_images.append(img)
            ColmapDatasetBase.properties = {
                "w": w,
                "h": h,
                "directions": directions,
                "all_c2w": torch.stack(all_c2w, dim=0),
                "all_images": all_images,
                "all_fg_masks": all_fg_masks,
            }
            ColmapDatasetBase.initialized = True
        for k, v in ColmapDatasetBase.properties.items():
            setattr(self, k, v)
        self.all_images, self.all_fg_masks = (
            torch.stack(self.all_images, dim=0),
            torch.stack(self.all_fg_masks, dim=0),
        )
        self.all_c2w = self.all_c2w.float().to(self.rank)
        if config.load_data_on_gpu:
            self.all_images, self.all_fg_masks = (
                self.all_images.float().to(self.rank),
                self.all_fg_masks.float().to(self.rank),
            )


class ColmapIterableDataset(ColmapDatasetBase):
    def __init__(self, config, split):
        self.setup(config, split)

    def __iter__(self):
        while True:
            yield {}


class ColmapDataset(ColmapDatasetBase):
    def __init__(self, config, split):
        self.setup(config, split)

    def __getitem__(self, index):
        return {"index": torch.tensor([index])}


class NeuSModel(nn.Module):
    def __init__(self, num_freqs=6, width=128, num_samples_per_ray=64):
        super().__init__()
        self.num_freqs, self.num_samples_per_ray = num_freqs, num_samples_per_ray
        self.sdf = nn.Sequential(
            nn.Linear(3 + 6 * num_freqs, width),
            nn.Softplus(100),
            nn.Linear(width, width),
            nn.Softplus(100),
            nn.Linear(width, 1 + 16),
        )
        self.texture = nn.Sequential(
            nn.Linear(16 + 3, width), nn.ReLU(), nn.Linear(width, 3), nn.Sigmoid()
        )
        self.background_color = torch.ones(3)

    def encode(self, x):
        return torch.cat(
            [x] + [f(x * 2**i) for i in range(self.num_freqs) for f in (torch.sin, torch.cos)],
            dim=-1,
        )

    def forward(self, rays):
        rays_o, rays_d = rays[:, None, :3], rays[:, None, 3:]
        t = torch.linspace(0.2, 2.5, self.num_samples_per_ray, device=rays.device)[None, :, None]
        sdf, feature = self.sdf(self.encode(rays_o + t * rays_d)).split([1, 16], dim=-1)
        rgb = self.texture(torch.cat([feature, rays_d.expand(-1, t.shape[1], -1)], dim=-1))
        alpha = torch.sigmoid(-sdf * 20)
        weights = alpha * torch.cumprod(
            torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1] + 1e-7], dim=1), dim=1
        )
        opacity = weights.sum(dim=1)
        comp_rgb = (weights * rgb).sum(dim=1) + self.background_color.to(rays.device) * (
            1 - opacity
        )
        return {"comp_rgb": comp_rgb, "opacity": opacity}


class NeuSSystem:
    def __init__(self, config, train_num_rays=512):
        self.config, self.rank, self.train_num_rays = config, DEVICE, train_num_rays
        self.model = NeuSModel().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.train_dataset = ColmapIterableDataset(config, "train")
        self.val_dataset = ColmapDataset(config, "val")

    def preprocess_data(self, batch, stage):
        dataset = self.dataset
        if stage == "train":
            n, device = self.train_num_rays, dataset.all_images.device
            index = torch.randint(0, len(dataset.all_images), size=(n,), device=device)
            x = torch.randint(0, dataset.w, size=(n,), device=device)
            y = torch.randint(0, dataset.h, size=(n,), device=device)
            c2w = dataset.all_c2w[index.to(self.rank)]
            directions = dataset.directions[y.to(self.rank), x.to(self.rank)]
            rays_o, rays_d = get_rays(directions, c2w)
            rgb = (
                dataset.all_images[index, y, x].view(-1, dataset.all_images.shape[-1]).to(self.rank)
            )
            fg_mask = dataset.all_fg_masks[index, y, x].view(-1).to(self.rank)
            self.model.background_color = torch.rand((3,), device=self.rank)
        else:
            index = batch["index"]
            rays_o, rays_d = get_rays(
                dataset.directions.view(-1, 3), dataset.all_c2w[index.to(self.rank)]
            )
            rgb = dataset.all_images[index.to(dataset.all_images.device)].view(-1, 3).to(self.rank)
            fg_mask = (
                dataset.all_fg_masks[index.to(dataset.all_fg_masks.device)].view(-1).to(self.rank)
            )
            self.model.background_color = torch.ones((3,), device=self.rank)
        rays = torch.cat([rays_o, F.normalize(rays_d, p=2, dim=-1)], dim=-1)
        batch.update({"rays": rays, "rgb": rgb, "fg_mask": fg_mask})

    def training_step(self, batch):
        out = self.model(batch["rays"])
        loss_rgb = F.l1_loss(out["comp_rgb"], batch["rgb"])
        opacity = torch.clamp(out["opacity"].squeeze(-1), 1.0e-3, 1.0 - 1.0e-3)
        return loss_rgb + 0.1 * F.binary_cross_entropy(opacity, batch["fg_mask"])

    def fit(self, max_steps):
        self.dataset = self.train_dataset
        for step, batch in zip(range(max_steps), self.dataset):
            self.preprocess_data(batch, "train")
            loss = self.training_step(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(f"step {step}: {loss.item():.4f}")

    @torch.no_grad()
    def validate(self, indices, chunk=4096):
        for index in indices:
            batch = self.val_dataset[index]
            self.dataset = self.val_dataset
            self.preprocess_data(batch, "validation")
            comp_rgb = torch.cat(
                [self.model(rays)["comp_rgb"].cpu() for rays in batch["rays"].split(chunk)]
            )
            print(f"picture {index}: mse {F.mse_loss(comp_rgb, batch['rgb'].cpu()).item():.4f}")


def main():
    system = NeuSSystem(DatasetConfig())
    system.fit(max_steps=4)
    system.validate([0])


if __name__ == "__main__":
    main()
