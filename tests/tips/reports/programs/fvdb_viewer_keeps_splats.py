"""After openvdb/fvdb-core#189: with the viewer on, training splats needs more GPU memory than without it."""

import math
import torch
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
PARAMS = ("means", "quats", "log_scales", "logit_opacities", "sh0", "shN")


class GaussianSplat3d:
    def __init__(self, means, quats, log_scales, logit_opacities, sh0, shN):
        self.means, self.quats, self.log_scales = means, quats, log_scales
        self.logit_opacities, self.sh0, self.shN = logit_opacities, sh0, shN
        self.accumulated_gradient_norms = torch.zeros(len(means), device=means.device)

    @classmethod
    def from_points(cls, points, sh_degree=3):
        n, k = len(points), (sh_degree + 1) ** 2 - 1
        quats = F.normalize(torch.randn(n, 4, device=DEVICE), dim=1)
        tensors = (
            points.to(DEVICE),
            quats,
            torch.full((n, 3), -3.0, device=DEVICE),
            torch.zeros(n, device=DEVICE),
            torch.rand(n, 1, 3, device=DEVICE),
            torch.zeros(n, k, 3, device=DEVICE),
        )
        return cls(*(t.requires_grad_() for t in tensors))

    @property
    def num_gaussians(self):
        return len(self.means)

    def state_dict(self):
        return {name: getattr(self, name).detach() for name in PARAMS}

    def __getitem__(self, mask_or_index):
        return GaussianSplat3d(
            *(t[mask_or_index].requires_grad_() for t in self.state_dict().values())
        )

    def project(self, cam_to_world, focal, size):
        """A coarse stand-in for the rasterizer: splat the colors of the projected means into the pixels."""
        p = (self.means - cam_to_world[:3, 3]) @ cam_to_world[:3, :3]
        depth = p[:, 2].clamp(min=0.1)
        uv = focal * p[:, :2] / depth[:, None] + size / 2
        alpha = torch.sigmoid(self.logit_opacities) * torch.exp(self.log_scales.mean(1)).clamp(
            max=1
        )
        color = (
            self.sh0[:, 0]
            + torch.einsum(
                "nkc,k->nc", self.shN, torch.full((self.shN.shape[1],), 0.1, device=DEVICE)
            )
            + self.quats[:, :3] * 0.0
        )
        frac = (uv - uv.detach().floor()).mean(1)
        pixel = uv.detach().long().clamp(0, size - 1)
        index = pixel[:, 1] * size + pixel[:, 0]
        image = torch.zeros(size * size, 3, device=DEVICE).index_add(
            0, index, color * (alpha * (0.5 + frac))[:, None]
        )
        return torch.sigmoid(image).view(size, size, 3)


class GaussianSplat3dView:
    def __init__(self, name, gaussian_scene, tile_size=16):
        self.name, self.tile_size = name, tile_size
        self._gaussian_scene = None
        self.near, self.far = 0.1, 1e6
        self.update(gaussian_scene)

    def update(self, gaussian_scene):
        # The renderer of the viewer has its own (packed, half precision, host) copy.
        state = gaussian_scene.state_dict()
        self._packed = (
            torch.cat(
                [
                    state[k].flatten(1) if state[k].dim() > 1 else state[k][:, None]
                    for k in PARAMS[:5]
                ],
                dim=1,
            )
            .half()
            .cpu()
        )
        if not CURED:
            self._gaussian_scene = gaussian_scene


class Viewer:
    def __init__(self):
        self._views = {}

    def add_gaussian_splat_3d(self, name, gaussian_scene):
        if name in self._views:
            self._views[name].update(gaussian_scene)
        else:
            self._views[name] = GaussianSplat3dView(name, gaussian_scene)
        return self._views[name]


class GaussianSplatOptimizer:
    def __init__(self, model, lr=1e-2):
        self._model = model
        self._optimizer = torch.optim.Adam(
            [{"params": [getattr(model, n)], "name": n} for n in PARAMS], lr=lr, eps=1e-15
        )

    def step(self):
        self._model.accumulated_gradient_norms += self._model.means.grad.norm(dim=1)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def refine(self):
        norms = self._model.accumulated_gradient_norms
        n = self._model.num_gaussians
        grow = norms.topk(n // 16).indices
        keep = torch.sigmoid(self._model.logit_opacities.detach()).topk(n - n // 32).indices
        index = torch.cat([keep, grow])
        self._model = self._model[index]
        for group in self._optimizer.param_groups:
            state = self._optimizer.state.pop(group["params"][0])
            group["params"][0] = getattr(self._model, group["name"])
            self._optimizer.state[group["params"][0]] = {
                "step": state["step"],
                "exp_avg": state["exp_avg"][index],
                "exp_avg_sq": state["exp_avg_sq"][index],
            }
        return self._model


class GaussianSplatReconstruction:
    def __init__(self, num_points, viewer, config):
        self.config, self.viewer = config, viewer
        self.model = GaussianSplat3d.from_points(torch.rand(num_points, 3) * 2 - 1)
        self.optimizer = GaussianSplatOptimizer(self.model)
        self.images = [torch.rand(96, 96, 3) for _ in range(4)]

    def camera(self, i):
        a = 2 * math.pi * i / len(self.images)
        c = torch.tensor(
            [
                [math.cos(a), 0, math.sin(a), -3 * math.sin(a)],
                [0, 1, 0, 0],
                [-math.sin(a), 0, math.cos(a), -3 * math.cos(a)],
                [0, 0, 0, 1],
            ]
        )
        return c.to(DEVICE)

    def optimize(self):
        if self.viewer is not None:
            self.viewer.add_gaussian_splat_3d("Splats", self.model)
        for step in range(self.config["max_steps"]):
            i = step % len(self.images)
            pixels = self.images[i].to(DEVICE)
            loss = F.l1_loss(self.model.project(self.camera(i), 90.0, 96), pixels)
            loss.backward()
            self.optimizer.step()
            if step % self.config["refine_every"] == self.config["refine_every"] - 1:
                self.model = self.optimizer.refine()
            if self.viewer is not None and step % self.config["update_viewer_every"] == 0:
                self.viewer.add_gaussian_splat_3d("Splats", self.model)
            if step % 3 == 0:
                print(f"step {step} loss {loss.item():.4f} gaussians {self.model.num_gaussians}")


def main():
    viewer = Viewer()
    runner = GaussianSplatReconstruction(
        150_000, viewer, {"max_steps": 8, "refine_every": 3, "update_viewer_every": 8}
    )
    runner.optimize()
    print(f"the most {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
