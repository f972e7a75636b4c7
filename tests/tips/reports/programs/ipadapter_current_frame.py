"""After laksjdjf/IPAdapter-ComfyUI#40: sampling many latents with an IP adapter takes far too much VRAM."""

import inspect

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
LATENTS, SIDE, STEPS = 8, 64, 4
CHANNELS = [320] * 4 + [640] * 4 + [320] * 4


def optimized_attention(q, k, v, heads):
    b, _, inner = q.shape
    q, k, v = (t.view(b, -1, heads, inner // heads).transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v)
    return out.transpose(1, 2).reshape(b, -1, inner)


class IPAdapterModel(nn.Module):
    def __init__(self, cross_attention_dim=768, tokens=4):
        super().__init__()
        self.tokens = tokens
        self.image_proj_model = nn.Linear(1024, tokens * cross_attention_dim)
        self.to_kvs = nn.ModuleList(
            nn.Linear(cross_attention_dim, channel, bias=False)
            for channel in CHANNELS
            for _ in range(2)
        )

    @torch.inference_mode()
    def get_image_embeds(self, cond):
        shape = (len(cond), self.tokens, -1)
        return (
            self.image_proj_model(cond).reshape(shape),
            self.image_proj_model(torch.zeros_like(cond)).reshape(shape),
        )


class CrossAttentionPatch:
    def __init__(self, weight, ipadapter, number, cond, uncond):
        self.weights, self.ipadapters = [weight], [ipadapter]
        self.conds, self.unconds = [cond], [uncond]
        self.number = number

    def __call__(self, n, context_attn2, value_attn2, extra_options):
        org_dtype = n.dtype
        if CURED:
            caller_locals = inspect.currentframe().f_back.f_locals
            cond_or_uncond = caller_locals["transformer_options"]["cond_or_uncond"]
        else:
            frame = inspect.currentframe()
            outer_frame = frame.f_back
            cond_or_uncond = outer_frame.f_locals["transformer_options"]["cond_or_uncond"]
        with torch.autocast("cuda", dtype=torch.float16):
            q = n
            k = context_attn2
            v = value_attn2
            b, _, _ = q.shape
            batch_prompt = b // len(cond_or_uncond)
            out = optimized_attention(q, k, v, extra_options["n_heads"])
            for weight, cond, uncond, ipadapter in zip(
                self.weights, self.conds, self.unconds, self.ipadapters, strict=True
            ):
                uncond_cond = torch.cat(
                    [
                        (cond.repeat(batch_prompt, 1, 1), uncond.repeat(batch_prompt, 1, 1))[i]
                        for i in cond_or_uncond
                    ]
                )
                ip_k = ipadapter.to_kvs[self.number * 2](uncond_cond).to(q.dtype)
                ip_v = ipadapter.to_kvs[self.number * 2 + 1](uncond_cond).to(q.dtype)
                ip_out = optimized_attention(q, ip_k, ip_v, extra_options["n_heads"])
                out = out + ip_out * weight
        return out.to(dtype=org_dtype)


class BasicTransformerBlock(nn.Module):
    def __init__(self, channels, patch):
        super().__init__()
        self.norm, self.to_out = nn.LayerNorm(channels), nn.Linear(channels, channels)
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k, self.to_v = nn.Linear(768, channels), nn.Linear(768, channels)
        self.patch = [patch]

    def forward(self, x, context, transformer_options):
        extra_options = {"n_heads": 8, "original_shape": x.shape}
        n = self.to_q(self.norm(x))
        n = self.patch[0](n, self.to_k(context), self.to_v(context), extra_options)
        return x + self.to_out(n)


class UNet(nn.Module):
    def __init__(self, patches):
        super().__init__()
        self.conv_in, self.conv_out = nn.Conv2d(4, 320, 1), nn.Conv2d(320, 4, 1)
        self.narrow, self.wide = nn.Linear(640, 320), nn.Linear(320, 640)
        self.blocks = nn.ModuleList(
            BasicTransformerBlock(channel, patch)
            for channel, patch in zip(CHANNELS, patches, strict=True)
        )

    def forward(self, x, context, transformer_options):
        h, shape = self.conv_in(x).flatten(2).transpose(1, 2), x.shape
        for block, channel in zip(self.blocks, CHANNELS, strict=True):
            if h.shape[-1] != channel:
                h = self.wide(h) if channel == 640 else self.narrow(h)
            h = block(h, context, transformer_options)
        return self.conv_out(h.transpose(1, 2).reshape(shape[0], 320, *shape[2:]))


def sample(unet, x, cond, uncond):
    for sigma in torch.linspace(1, 0, STEPS + 1)[:-1].tolist():
        context = torch.cat([cond.expand(len(x), -1, -1), uncond.expand(len(x), -1, -1)])
        output = unet(torch.cat([x, x]), context, {"cond_or_uncond": [0, 1], "sigmas": sigma})
        positive, negative = output.chunk(2)
        x = x - (negative + 7 * (positive - negative)) * sigma / STEPS
    return x


ipadapter = IPAdapterModel().cuda().half()
image_emb, uncond_image_emb = ipadapter.get_image_embeds(torch.randn(1, 1024).cuda().half())
patches = [
    CrossAttentionPatch(0.8, ipadapter, number, image_emb, uncond_image_emb)
    for number in range(len(CHANNELS))
]
unet = UNet(patches).cuda().half()
prompts = torch.randn(2, 1, 77, 768).cuda().half()
with torch.inference_mode():
    # CURE
    samples = sample(unet, torch.randn(LATENTS, 4, SIDE, SIDE).cuda().half(), *prompts)
print(samples.shape)
