"""After AUTOMATIC1111/stable-diffusion-webui#5065: after pictures in batches of two or more, changing the checkpoint leaves most of the VRAM taken."""

import gc
import math
import types
import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import deque

CURED = False
DEVICE = "cuda"


class ResBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1, self.conv2 = (
            nn.Conv2d(cin, cout, 3, padding=1),
            nn.Conv2d(cout, cout, 3, padding=1),
        )
        self.skip, self.emb = nn.Conv2d(cin, cout, 1), nn.Linear(256, cout)

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(emb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, cin, widths=(128, 320, 640, 960)):
        super().__init__()
        self.stem, self.head = (
            nn.Conv2d(cin, widths[0], 3, padding=1),
            nn.Conv2d(widths[0], 4, 3, padding=1),
        )
        self.down = nn.ModuleList([ResBlock(a, b) for a, b in zip(widths, widths[1:])])
        self.mid = ResBlock(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            [ResBlock(2 * b, a) for a, b in reversed(list(zip(widths, widths[1:])))]
        )
        self.emb = nn.Sequential(nn.Linear(1, 256), nn.SiLU(), nn.Linear(256, 256))

    def forward(self, x, sigma, cond):
        emb, skips = self.emb(sigma[:, None]) + cond.mean(dim=1), []
        x = self.stem(x)
        for block in self.down:
            x = F.avg_pool2d(block(x, emb), 2)
            skips.append(x)
        x = self.mid(x, emb)
        for block in self.up:
            x = F.interpolate(block(torch.cat([x, skips.pop()], 1), emb), scale_factor=2)
        return self.head(x)


class LatentDiffusion(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.in_channels = in_channels
        self.cond_stage_model = nn.Sequential(nn.Embedding(49408, 768), nn.Linear(768, 256))
        self.model = UNet(in_channels)
        self.first_stage_model = nn.ConvTranspose2d(4, 3, 8, 8)

    def decode_first_stage(self, z):
        return self.first_stage_model(z).clamp(-1, 1)


class Shared:
    sd_model = None
    sd_checkpoint = None


shared = Shared()


def get_sigmas_karras(n, sigma_min=0.1, sigma_max=10.0, rho=7.0, device="cpu"):
    ramp = torch.linspace(0, 1, n)
    sigmas = (
        sigma_max ** (1 / rho) + ramp * (sigma_min ** (1 / rho) - sigma_max ** (1 / rho))
    ) ** rho
    return torch.cat([sigmas, sigmas.new_zeros([1])]).to(device)


def sample_euler_ancestral(model, x, sigmas, extra_args, callback=None, eta=1.0):
    """Uses the name `torch` of the module k_diffusion.sampling, as the real function does."""
    s_in = x.new_ones([x.shape[0]])
    schedule = sigmas.tolist()
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i] * s_in, **extra_args)
        if callback is not None:
            callback({"denoised": denoised})
        sigma_from, sigma_to = schedule[i], schedule[i + 1]
        sigma_up = min(
            sigma_to,
            eta * math.sqrt(max(sigma_to**2 * (sigma_from**2 - sigma_to**2), 0.0)) / sigma_from,
        )
        sigma_down = math.sqrt(max(sigma_to**2 - sigma_up**2, 0.0))
        x = x + (x - denoised) / sigmas[i] * (sigma_down - sigma_from)
        x = x + k_diffusion.sampling.torch.randn_like(x) * sigma_up
    return x


k_diffusion = types.SimpleNamespace(
    sampling=types.SimpleNamespace(torch=torch, sample_euler_ancestral=sample_euler_ancestral)
)


class CompVisDenoiser(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner_model = model

    def forward(self, x, sigma, cond):
        if self.inner_model.in_channels > 4:
            image_conditioning = x.new_zeros(
                x.shape[0], self.inner_model.in_channels - 4, *x.shape[2:]
            )
            x = torch.cat([x, image_conditioning], dim=1)
        eps = self.inner_model.model(x, sigma, cond)
        return x[:, :4] - eps * sigma[:, None, None, None]


class CFGDenoiser(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner_model = model
        self.step = 0

    def forward(self, x, sigma, uncond, cond, cond_scale):
        x_out = self.inner_model(
            torch.cat([x, x]), torch.cat([sigma, sigma]), cond=torch.cat([cond, uncond])
        )
        denoised_cond, denoised_uncond = x_out.chunk(2)
        self.step += 1
        return denoised_uncond + (denoised_cond - denoised_uncond) * cond_scale


class TorchHijack:
    def __init__(self, source):
        if CURED:
            # only the noises, not the sampler that owns the model
            self.sampler_noises = deque(source)
        else:
            self.kdiff_sampler = source

    def __getattr__(self, item):
        if item == "randn_like":
            return self.noise_like if CURED else self.kdiff_sampler.randn_like
        if hasattr(torch, item):
            return getattr(torch, item)
        raise AttributeError(item)

    def noise_like(self, x):
        if self.sampler_noises:
            noise = self.sampler_noises.popleft()
            if noise.shape == x.shape:
                return noise
        return torch.randn_like(x)


class KDiffusionSampler:
    def __init__(self, funcname, sd_model):
        self.model_wrap = CompVisDenoiser(sd_model)
        self.func = getattr(k_diffusion.sampling, funcname)
        self.model_wrap_cfg = CFGDenoiser(self.model_wrap)
        self.sampler_noises = None
        self.sampler_noise_index = 0

    def randn_like(self, x):
        noise = None
        if self.sampler_noises is not None and self.sampler_noise_index < len(self.sampler_noises):
            noise = self.sampler_noises[self.sampler_noise_index]
        res = noise if noise is not None and x.shape == noise.shape else torch.randn_like(x)
        self.sampler_noise_index += 1
        return res

    def initialize(self):
        self.model_wrap_cfg.step = 0
        self.sampler_noise_index = 0
        if self.sampler_noises is not None:
            k_diffusion.sampling.torch = TorchHijack(self.sampler_noises if CURED else self)

    def sample(self, x, conditioning, unconditional_conditioning, steps, cfg_scale):
        sigmas = get_sigmas_karras(steps, device=x.device)
        x = x * sigmas[0]
        self.initialize()
        return self.func(
            self.model_wrap_cfg,
            x,
            sigmas,
            extra_args={
                "cond": conditioning,
                "uncond": unconditional_conditioning,
                "cond_scale": cfg_scale,
            },
        )


def create_random_tensors(shape, seeds, sampler, steps):
    xs, sampler_noises = [], [[] for _ in range(steps)]
    for seed in seeds:
        torch.manual_seed(seed)
        xs.append(torch.randn(shape, device=DEVICE))
        if len(seeds) > 1:
            for i in range(steps):
                sampler_noises[i].append(torch.randn(shape, device=DEVICE))
    if len(seeds) > 1:
        sampler.sampler_noises = [torch.stack(n) for n in sampler_noises]
    return torch.stack(xs)


@torch.no_grad()
def txt2img(prompts, steps=4, cfg_scale=7.0):
    sampler = KDiffusionSampler("sample_euler_ancestral", shared.sd_model)
    tokens = torch.randint(0, 49408, (len(prompts), 77), device=DEVICE)
    c, uc = (
        shared.sd_model.cond_stage_model(tokens),
        shared.sd_model.cond_stage_model(torch.zeros_like(tokens)),
    )
    x = create_random_tensors((4, 64, 64), list(range(len(prompts))), sampler, steps)
    samples = sampler.sample(x, c, uc, steps, cfg_scale)
    return shared.sd_model.decode_first_stage(samples).cpu()


def load_model(checkpoint):
    if shared.sd_model is not None:
        shared.sd_model = None
        gc.collect()
        torch.cuda.empty_cache()
    shared.sd_model = (
        LatentDiffusion(in_channels=9 if "inpainting" in checkpoint else 4).to(DEVICE).eval()
    )
    shared.sd_checkpoint = checkpoint


def main():
    for checkpoint in ("sd-v1-5-inpainting", "v1-5-pruned-emaonly"):
        load_model(checkpoint)
        images = txt2img(["a castle"] * 2)
        print(
            f"{shared.sd_checkpoint}: {tuple(images.shape)}, {torch.cuda.memory_allocated() / 2**20:.0f} MB"
        )


if __name__ == "__main__":
    main()
