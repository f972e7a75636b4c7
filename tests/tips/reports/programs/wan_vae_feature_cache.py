"""After kijai/ComfyUI-WanVideoWrapper#33: two GB stay occupied once a video was encoded, whatever one does."""

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
CACHE_T, HEIGHT, WIDTH, FRAMES = 2, 480, 832, 17


class CausalConv3d(nn.Conv3d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        time, height, width = self.padding
        self._padding = (width, width, height, height, 2 * time, 0)
        self.padding = (0, 0, 0)

    def forward(self, x, cache_x=None):
        padding = list(self._padding)
        if cache_x is not None and padding[4] > 0:
            x = torch.cat([cache_x, x], dim=2)
            padding[4] -= cache_x.shape[2]
        return super().forward(F.pad(x, padding))


def cached_conv(conv, x, feat_cache, feat_idx):
    idx = feat_idx[0]
    cache_x = x[:, :, -CACHE_T:].clone()
    if cache_x.shape[2] < CACHE_T and feat_cache[idx] is not None:
        cache_x = torch.cat([feat_cache[idx][:, :, -1:], cache_x], dim=2)
    x = conv(x, feat_cache[idx])
    feat_cache[idx] = cache_x
    feat_idx[0] += 1
    return x


class ResidualBlock(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.conv1 = CausalConv3d(in_dim, out_dim, 3, padding=1)
        self.conv2 = CausalConv3d(out_dim, out_dim, 3, padding=1)
        self.shortcut = CausalConv3d(in_dim, out_dim, 1) if in_dim != out_dim else nn.Identity()

    def forward(self, x, feat_cache, feat_idx):
        h = self.shortcut(x)
        x = cached_conv(self.conv1, F.silu(x), feat_cache, feat_idx)
        x = cached_conv(self.conv2, F.silu(x), feat_cache, feat_idx)
        return x + h


class Encoder3d(nn.Module):
    def __init__(self, dim=96, z_dim=16):
        super().__init__()
        self.conv1 = CausalConv3d(3, dim, 3, padding=1)
        self.blocks, self.resample, width = nn.ModuleList(), nn.ModuleList(), dim
        for out_dim in (dim, 2 * dim, 4 * dim):
            self.blocks.append(ResidualBlock(width, out_dim))
            self.resample.append(nn.Conv3d(out_dim, out_dim, (1, 2, 2), stride=(1, 2, 2)))
            width = out_dim
        self.head = CausalConv3d(width, 2 * z_dim, 3, padding=1)

    def forward(self, x, feat_cache, feat_idx):
        x = cached_conv(self.conv1, x, feat_cache, feat_idx)
        for block, resample in zip(self.blocks, self.resample, strict=True):
            x = resample(block(x, feat_cache, feat_idx))
        return cached_conv(self.head, F.silu(x), feat_cache, feat_idx)


class WanVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder3d()
        self.clear_cache()

    def clear_cache(self):
        self._enc_conv_num = sum(isinstance(m, CausalConv3d) for m in self.encoder.modules())
        self._enc_conv_idx, self._enc_feat_map = [0], [None] * self._enc_conv_num

    def encode(self, x):
        self.clear_cache()
        out = None
        for i in range(1 + (x.shape[2] - 1) // 4):
            self._enc_conv_idx = [0]
            chunk = x[:, :, :1] if i == 0 else x[:, :, 1 + 4 * (i - 1) : 1 + 4 * i]
            part = self.encoder(chunk, self._enc_feat_map, self._enc_conv_idx)
            out = part if out is None else torch.cat([out, part], dim=2)
        mu, _ = out.chunk(2, dim=1)
        return mu


class WanAttentionBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, s, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, 8, dim // 8).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.ffn(self.norm2(x))


class WanModel(nn.Module):
    def __init__(self, dim=1024, layers=6):
        super().__init__()
        self.patch_embedding = nn.Conv3d(16, dim, (1, 2, 2), stride=(1, 2, 2))
        self.blocks = nn.Sequential(*[WanAttentionBlock(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, 64)

    def forward(self, x):
        shape = x.shape
        tokens = self.patch_embedding(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(tokens)).transpose(1, 2).reshape(shape)


class WanVideoEncode:
    def encode(self, vae, image):
        vae.to("cuda")
        latents = vae.encode(image.to("cuda", torch.bfloat16) * 2 - 1)
        if CURED:
            vae.clear_cache()
        vae.to("cpu")
        return {"samples": latents.cpu()}


class WanVideoSampler:
    def process(self, model, samples, steps=4):
        model.to("cuda")
        latent = samples["samples"].to("cuda")
        noise = torch.randn_like(latent)
        for t in torch.linspace(1, 0, steps + 1)[:-1].tolist():
            noise_pred = model(latent * (1 - t) + noise * t)
            latent = latent - noise_pred / steps
        model.to("cpu")
        return {"samples": latent.cpu()}


vae, model = WanVAE().to(torch.bfloat16), WanModel().to(torch.bfloat16).eval()
image = torch.rand(1, 3, FRAMES, HEIGHT, WIDTH)
with torch.no_grad():
    samples = WanVideoEncode().encode(vae, image)
    # CURE
    result = WanVideoSampler().process(model, samples)
torch.cuda.empty_cache()
print(result["samples"].shape)
