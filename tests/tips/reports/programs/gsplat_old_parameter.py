"""After nerfstudio-project/gsplat#931: adding Gaussians needs much more memory than training them."""

import math

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
GAUSSIANS, VISIBLE, PIXELS, STEPS, REFINE_EVERY, GROWTH = 2_000_000, 4096, 1024, 4, 2, 0.03
SHAPES = {
    "means": (3,),
    "scales": (3,),
    "quats": (4,),
    "opacities": (),
    "sh0": (1, 3),
    "shN": (15, 3),
}


def create_splats_with_optimizers():
    splats = nn.ParameterDict(
        {name: nn.Parameter(torch.randn(GAUSSIANS, *shape)) for name, shape in SHAPES.items()}
    ).cuda()
    optimizers = {
        name: torch.optim.Adam([{"params": splats[name], "name": name}], lr=1e-3, fused=True)
        for name in splats
    }
    return splats, optimizers


def rasterize_splats(splats, visible):
    """Render a few pixels from the visible Gaussians."""
    means, opacities = splats["means"][visible], torch.sigmoid(splats["opacities"][visible])
    scales, quats = torch.exp(splats["scales"][visible]), F.normalize(splats["quats"][visible])
    colors = torch.cat([splats["sh0"][visible], splats["shN"][visible]], 1).mean(1)
    pixels = torch.rand(PIXELS, 2, device="cuda")
    footprint = scales[:, :2] * quats[:, :1].abs() + 0.01
    distances = ((pixels[:, None] - means[None, :, :2]) / footprint).square().sum(-1)
    weights = torch.exp(-0.5 * distances) * opacities
    return (weights / (weights.sum(1, keepdim=True) + 1e-6)) @ colors


@torch.no_grad()
def _update_param_with_optimizer(param_fn, optimizer_fn, params, optimizers):
    for name in list(params.keys()):
        param = params[name]
        new_param = param_fn(name, param)
        params[name] = new_param
        optimizer = optimizers[name]
        for group in optimizer.param_groups:
            param_state = optimizer.state.pop(param)
            if CURED:
                group["params"] = [new_param]
                del param
            for key in param_state:
                if key != "step":
                    param_state[key] = optimizer_fn(key, param_state[key])
            group["params"] = [new_param]
            optimizer.state[new_param] = param_state


class MCMCStrategy:
    """Every few steps, put new Gaussians where opaque ones are"""

    def __init__(self, cap_max=4_000_000):
        self.cap_max = cap_max

    def step_post_backward(self, params, optimizers, step):
        if step % REFINE_EVERY == REFINE_EVERY - 1:
            added = self._add_new_gs(params, optimizers)
            print(f"step {step}: added {added} Gaussians, now {len(params['means'])}")
        self._inject_noise(params)

    def _add_new_gs(self, params, optimizers):
        current = len(params["means"])
        target = min(self.cap_max, math.ceil((1 + GROWTH) * current))
        sample_add(params, optimizers, target - current)
        return target - current

    @torch.no_grad()
    def _inject_noise(self, params):
        noise = torch.randn_like(params["means"])
        params["means"].add_(noise.mul_(torch.sigmoid(-params["opacities"]).unsqueeze(-1)))


def sample_add(params, optimizers, n):
    sampled_idxs = torch.randint(0, len(params["means"]), (n,), device="cuda")

    def param_fn(name, p):
        return nn.Parameter(torch.cat([p, p[sampled_idxs]]))

    def optimizer_fn(key, v):
        return torch.cat([v, torch.zeros((n, *v.shape[1:]), device=v.device)])

    _update_param_with_optimizer(param_fn, optimizer_fn, params, optimizers)


class Runner:
    def __init__(self):
        self.splats, self.optimizers = create_splats_with_optimizers()
        self.strategy = MCMCStrategy()

    def train_step(self):
        visible = torch.randperm(GAUSSIANS)[:VISIBLE].cuda()
        colors = rasterize_splats(self.splats, visible)
        loss = F.l1_loss(colors, torch.rand_like(colors))
        loss.backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def train(self):
        for step in range(STEPS):
            self.train_step()
            self.strategy.step_post_backward(self.splats, self.optimizers, step)


Runner().train()
