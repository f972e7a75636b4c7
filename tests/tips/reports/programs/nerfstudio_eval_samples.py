"""After nerfstudio-project/nerfstudio#766: rendering an evaluation image makes the memory spike."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import nn

CURED = False
IMAGE_HEIGHT, IMAGE_WIDTH, RAYS_PER_CHUNK, TRAIN_RAYS = 540, 960, 1 << 15, 4096


@dataclass
class RayBundle:
    origins: torch.Tensor
    directions: torch.Tensor

    def get_row_major_sliced_ray_bundle(self, start_idx, end_idx):
        return RayBundle(
            self.origins.view(-1, 3)[start_idx:end_idx],
            self.directions.view(-1, 3)[start_idx:end_idx],
        )


@dataclass
class RaySamples:
    origins: torch.Tensor
    directions: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    deltas: torch.Tensor

    def get_positions(self):
        middle = (self.starts + self.ends) / 2
        return self.origins[:, None] + self.directions[:, None] * middle[..., None]

    def get_weights(self, densities):
        delta_density = self.deltas * densities
        alphas = 1 - torch.exp(-delta_density)
        transmittance = torch.exp(-(torch.cumsum(delta_density, dim=-1) - delta_density))
        return alphas * transmittance


def ray_samples_of(ray_bundle, bins):
    starts, ends = bins[:, :-1].contiguous(), bins[:, 1:].contiguous()
    return RaySamples(ray_bundle.origins, ray_bundle.directions, starts, ends, ends - starts)


class ProposalNetworkSampler(nn.Module):
    def __init__(self, num_proposal_samples=(256, 96), num_nerf_samples=48):
        super().__init__()
        self.num_samples = (*num_proposal_samples, num_nerf_samples)
        self.density_fns = nn.ModuleList(
            nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.Softplus())
            for _ in num_proposal_samples
        )

    def forward(self, ray_bundle):
        weights_list, ray_samples_list = [], []
        for level, number in enumerate(self.num_samples):
            steps = torch.linspace(0.05, 6, number + 1, device="cuda")
            jitter = torch.rand(len(ray_bundle.origins), 1, device="cuda") * 6 / number
            ray_samples = ray_samples_of(ray_bundle, steps + jitter)
            if level == len(self.density_fns):
                return ray_samples, weights_list, ray_samples_list
            density = self.density_fns[level](ray_samples.get_positions())[..., 0]
            weights_list.append(ray_samples.get_weights(density))
            ray_samples_list.append(ray_samples)
        return None


class NerfactoModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.proposal_sampler = ProposalNetworkSampler()
        self.field = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, ray_bundle):
        ray_samples, weights_list, ray_samples_list = self.proposal_sampler(ray_bundle)
        field_outputs = self.field(ray_samples.get_positions())
        weights = ray_samples.get_weights(nn.functional.softplus(field_outputs[..., 3]))
        weights_list.append(weights)
        ray_samples_list.append(ray_samples)
        outputs = {
            "rgb": (weights[..., None] * field_outputs[..., :3].sigmoid()).sum(1),
            "accumulation": weights.sum(1, keepdim=True),
            "depth": (weights * ray_samples.starts).sum(1, keepdim=True),
        }
        if self.training or not CURED:
            outputs["weights_list"] = weights_list
            outputs["ray_samples_list"] = ray_samples_list
        for i in range(2):
            proposed = weights_list[i] * ray_samples_list[i].starts
            outputs[f"prop_depth_{i}"] = proposed.sum(1, keepdim=True)
        return outputs

    def get_loss_dict(self, outputs, batch):
        distortion = sum(
            (w * samples.deltas).square().mean()
            for w, samples in zip(outputs["weights_list"], outputs["ray_samples_list"], strict=True)
        )
        return {
            "rgb_loss": nn.functional.mse_loss(outputs["rgb"], batch["image"]),
            "distortion_loss": 0.002 * distortion,
        }

    @torch.no_grad()
    def get_outputs_for_camera_ray_bundle(self, camera_ray_bundle):
        image_height, image_width = camera_ray_bundle.origins.shape[:2]
        num_rays = image_height * image_width
        outputs, outputs_lists = {}, defaultdict(list)
        for i in range(0, num_rays, RAYS_PER_CHUNK):
            ray_bundle = camera_ray_bundle.get_row_major_sliced_ray_bundle(i, i + RAYS_PER_CHUNK)
            outputs = self.forward(ray_bundle=ray_bundle)
            for output_name, output in outputs.items():
                outputs_lists[output_name].append(output)
        for output_name, outputs_list in outputs_lists.items():
            if torch.is_tensor(outputs_list[0]):
                outputs[output_name] = torch.cat(outputs_list).view(image_height, image_width, -1)
        return outputs


model = NerfactoModel().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(2):
    rays = RayBundle(torch.rand(TRAIN_RAYS, 3).cuda(), torch.rand(TRAIN_RAYS, 3).cuda())
    loss = sum(
        model.get_loss_dict(model(rays), {"image": torch.rand(TRAIN_RAYS, 3).cuda()}).values()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
shape = (IMAGE_HEIGHT, IMAGE_WIDTH, 3)
# CURE
outputs = model.get_outputs_for_camera_ray_bundle(
    RayBundle(torch.zeros(shape).cuda(), torch.rand(shape).cuda())
)
psnr = -10 * torch.log10(nn.functional.mse_loss(outputs["rgb"], torch.rand(shape).cuda()))
print(psnr.shape, outputs["depth"].shape)
