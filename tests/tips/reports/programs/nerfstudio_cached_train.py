"""After nerfstudio-project/nerfstudio#3335: images pile up on the GPU while splatfacto trains."""

import random

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
IMAGES, HEIGHT, WIDTH, GAUSSIANS, STEPS, DOWNSCALE = 16, 1200, 1600, 20_000, 12, 16


class InputDataset:
    def __len__(self):
        return IMAGES

    def get_data(self, image_idx, image_type="float32"):
        image = torch.rand(HEIGHT, WIDTH, 3, dtype=getattr(torch, image_type))
        return {"image_idx": image_idx, "image": image}


class FullImageDatamanager:
    """Hands out full images rather than bundles of rays; the images are cached on the CPU"""

    def __init__(self, train_dataset, device):
        self.train_dataset, self.device = train_dataset, device
        self.cached_train = self._load_images("train")
        self.train_cameras = torch.randn(len(train_dataset), 3, 4)
        self.train_unseen_cameras = self.sample_train_cameras()

    def _load_images(self, split, cache_images_device="cpu"):
        cached = [self.train_dataset.get_data(i) for i in range(len(self.train_dataset))]
        for data in cached:
            data["image"] = data["image"].to(cache_images_device)
        return cached

    def sample_train_cameras(self):
        order = list(range(len(self.train_dataset)))
        random.shuffle(order)
        return order

    def next_train(self, step):
        """Returns the next training batch: a camera and its image"""
        image_idx = self.train_unseen_cameras.pop(0)
        if not self.train_unseen_cameras:
            self.train_unseen_cameras = self.sample_train_cameras()
        data = self.cached_train[image_idx]
        if CURED:
            data = data.copy()
        data["image"] = data["image"].to(self.device)
        camera = self.train_cameras[image_idx : image_idx + 1].to(self.device)
        return camera, data


class SplatfactoModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.gauss_params = nn.ParameterDict(
            {
                "means": nn.Parameter(torch.randn(GAUSSIANS, 3)),
                "scales": nn.Parameter(torch.full((GAUSSIANS, 1), -3.0)),
                "opacities": nn.Parameter(torch.zeros(GAUSSIANS, 1)),
                "features_dc": nn.Parameter(torch.rand(GAUSSIANS, 3)),
            }
        )

    def _get_downscale_factor(self):
        return DOWNSCALE  # early in the training

    def _downscale_if_required(self, image):
        d = self._get_downscale_factor()
        return F.avg_pool2d(image.permute(2, 0, 1)[None], d)[0].permute(1, 2, 0)

    def get_outputs(self, camera):
        """Splat each Gaussian onto the pixel under its mean"""
        d = self._get_downscale_factor()
        height, width = HEIGHT // d, WIDTH // d
        gauss = self.gauss_params
        depth = (gauss["means"] @ camera[0, :, :3]).norm(dim=1, keepdim=True)
        xy = torch.tanh(gauss["means"] @ camera[0, :, :2] + camera[0, :2, 3]) * 0.5 + 0.5
        pixels = (xy[:, 1] * (height - 1)).long() * width + (xy[:, 0] * (width - 1)).long()
        alpha = torch.sigmoid(gauss["opacities"]) * torch.exp(gauss["scales"] - depth)
        colors = torch.cat([gauss["features_dc"] * alpha, alpha], 1)
        canvas = torch.zeros(height * width, 4, device=DEVICE).index_add(0, pixels, colors)
        return {"rgb": (canvas[:, :3] / (canvas[:, 3:] + 1e-6)).view(height, width, 3)}

    def get_loss_dict(self, outputs, batch):
        gt_img = self._downscale_if_required(batch["image"])
        return {"main_loss": (gt_img - outputs["rgb"]).abs().mean()}


class Pipeline:
    def __init__(self):
        self.datamanager = FullImageDatamanager(InputDataset(), DEVICE)
        self.model = SplatfactoModel().to(DEVICE)

    def get_train_loss_dict(self, step):
        camera, data = self.datamanager.next_train(step)
        return self.model.get_loss_dict(self.model.get_outputs(camera), data)


pipeline = Pipeline()
optimizer = torch.optim.Adam(pipeline.model.parameters(), lr=1e-2)
for step in range(STEPS):
    loss = sum(pipeline.get_train_loss_dict(step).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
