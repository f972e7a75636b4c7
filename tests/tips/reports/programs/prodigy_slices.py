"""After konstmish/prodigy#22: finetuning with Prodigy needs far more VRAM than with AdamW."""

import math

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
WIDTH, BLOCKS, BATCH, STEPS = 1280, 8, 8, 3


class Prodigy(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0, betas=(0.9, 0.999), eps=1e-8, d0=1e-6, slice_p=1):
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "d": d0, "d0": d0, "d_max": d0,
            "d_numerator": 0.0, "k": 0, "slice_p": slice_p,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        beta3 = math.sqrt(beta2)
        d, d0, dlr = group["d"], group["d0"], group["d"] * group["lr"]
        d_numerator, d_denom = group["d_numerator"] * beta3, 0.0
        for group in self.param_groups:
            slice_p = group["slice_p"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                if "step" not in state:
                    state["step"] = 0
                    state["s"] = torch.zeros_like(p.flatten()[::slice_p]).detach()
                    state["p0"] = p.flatten()[::slice_p].detach().clone()
                    state["exp_avg"] = torch.zeros_like(p).detach()
                    state["exp_avg_sq"] = torch.zeros_like(p).detach()
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                s, p0 = state["s"], state["p0"]
                sliced_grad = grad.flatten()[::slice_p]
                moved = p0 - p.flatten()[::slice_p]
                d_numerator += (d / d0) * dlr * torch.dot(sliced_grad, moved).item()
                exp_avg.mul_(beta1).add_(grad, alpha=d * (1 - beta1))
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=d * d * (1 - beta2))
                s.mul_(beta3).add_(sliced_grad, alpha=(d / d0) * dlr)
                d_denom += s.abs().sum().item()
        d_hat = d_numerator / d_denom if d_denom else d
        d_max = max(self.param_groups[0]["d_max"], d_hat)
        for group in self.param_groups:
            group["d_numerator"], group["d"], group["d_max"] = d_numerator, max(d, d_max), d_max
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] += 1
                denom = state["exp_avg_sq"].sqrt().add_(d * group["eps"])
                p.addcdiv_(state["exp_avg"], denom, value=-dlr)
            group["k"] += 1


class TransformerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 20, width // 20).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width)
        x = x + self.proj(attended)
        return x + self.ff(self.norm2(x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj_in, self.proj_out = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 16)
        self.blocks = nn.Sequential(*[TransformerBlock(WIDTH) for _ in range(BLOCKS)])

    def forward(self, latents, timestep):
        patches = F.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)
        x = self.blocks(self.proj_in(patches) + timestep[:, None, None])
        return F.pixel_shuffle(self.proj_out(x).transpose(1, 2).unflatten(2, (16, 16)), 2)


unet = UNet().cuda()
optimizer = Prodigy(unet.parameters(), slice_p=11 if CURED else 1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
# CURE
for step in range(STEPS):
    latents, timestep = torch.randn(BATCH, 4, 32, 32).cuda(), torch.rand(BATCH).cuda()
    noise = torch.randn_like(latents)
    t = timestep[:, None, None, None]
    loss = F.mse_loss(unet(latents * (1 - t) + noise * t, timestep), noise - latents)
    loss.backward()
    nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
print(optimizer.param_groups[0]["k"])
