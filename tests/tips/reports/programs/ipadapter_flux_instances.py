"""After Shakker-Labs/ComfyUI-IPAdapter-Flux#76: each run of another workflow leaves an adapter in memory."""

import weakref

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
HIDDEN, CROSS, TOKENS, DOUBLE, SINGLE, RUNS = 1536, 2048, 32, 4, 8, 5


class IPAFluxAttnProcessor(nn.Module):
    _instances = weakref.WeakSet() if CURED else set()
    _last_timestep_printed = None

    def __init__(self, num_tokens, hidden_size, cross_attention_dim, scale=1.0, total_steps=1):
        super().__init__()
        self.num_tokens, self.scale, self.total_steps = num_tokens, scale, total_steps
        self.to_k_ip = nn.Linear(cross_attention_dim, hidden_size, bias=False)
        self.to_v_ip = nn.Linear(cross_attention_dim, hidden_size, bias=False)
        self.norm_added_k, self.norm_added_v = nn.LayerNorm(128), nn.LayerNorm(128)
        self.seen_timesteps, self.steps = set(), 0
        self.__class__._instances.add(self)

    @classmethod
    def reset_all_instances(cls):
        cls._last_timestep_printed = None
        for instance in cls._instances:
            instance.seen_timesteps.clear()
            instance.steps = 0

    def forward(self, num_heads, query, image_emb, t):
        if t not in self.seen_timesteps:
            self.seen_timesteps.add(t)
            self.steps += 1
        ip_k, ip_v = self.to_k_ip(image_emb), self.to_v_ip(image_emb)
        b = len(image_emb)
        ip_k, ip_v = (x.view(b, -1, num_heads, 128).transpose(1, 2) for x in (ip_k, ip_v))
        out = F.scaled_dot_product_attention(
            query, self.norm_added_k(ip_k), self.norm_added_v(ip_v)
        )
        return self.scale * out.transpose(1, 2).flatten(2)


class InstantXFluxIPAdapterModel:
    def __init__(self, ip_ckpt, device):
        self.image_encoder = nn.Sequential(nn.Conv2d(3, 1152, 14, 14), nn.Flatten(2))
        self.image_encoder.to(device, torch.float16)
        self.image_proj_model = nn.Linear(1152, CROSS * TOKENS).to(device, torch.float16)
        self.ip_attn_procs = self.init_ip_adapter(device)
        ip_layers = nn.ModuleList(self.ip_attn_procs.values())
        ip_layers.load_state_dict(ip_ckpt, strict=True)

    def init_ip_adapter(self, device):
        names = [f"double_blocks.{i}" for i in range(DOUBLE)]
        names += [f"single_blocks.{i}" for i in range(SINGLE)]
        return {
            name: IPAFluxAttnProcessor(TOKENS, HIDDEN, CROSS).to(device, torch.float16)
            for name in names
        }

    @torch.inference_mode()
    def get_image_embeds(self, image):
        pooled = self.image_encoder(image.to("cuda", torch.float16)).mean(-1)
        return self.image_proj_model(pooled).view(-1, TOKENS, CROSS)


class FluxModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.img_in, self.final_layer = nn.Linear(64, HIDDEN), nn.Linear(HIDDEN, 64)
        self.blocks = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(DOUBLE + SINGLE))

    def forward(self, img, t, ip_attn_procs, image_emb):
        x = self.img_in(img)
        for block, proc in zip(self.blocks, ip_attn_procs.values(), strict=True):
            query = block(x).view(len(x), -1, HIDDEN // 128, 128).transpose(1, 2)
            x = x + proc(HIDDEN // 128, query, image_emb, t)
        return self.final_layer(x)


class PromptExecutor:
    """Keeps the outputs of a workflow's nodes until another workflow comes."""

    def __init__(self, model, ip_ckpt):
        self.model, self.ip_ckpt, self.outputs = model, ip_ckpt, {}

    @torch.inference_mode()
    def execute(self, image, weight, steps=3):
        self.outputs.clear()
        adapter = InstantXFluxIPAdapterModel(self.ip_ckpt, "cuda")
        self.outputs["IPAdapterFluxLoader"] = adapter
        IPAFluxAttnProcessor.reset_all_instances()
        for processor in adapter.ip_attn_procs.values():
            processor.scale, processor.total_steps = weight, steps
        image_emb = adapter.get_image_embeds(image)
        latent = torch.randn(1, 1024, 64, device="cuda", dtype=torch.float16)
        for t in torch.linspace(1, 0, steps + 1)[:-1].tolist():
            latent = latent - self.model(latent, t, adapter.ip_attn_procs, image_emb) / steps
        self.outputs["KSampler"] = latent
        return latent.float().cpu()


ip_ckpt = nn.ModuleList(
    IPAFluxAttnProcessor(TOKENS, HIDDEN, CROSS) for _ in range(DOUBLE + SINGLE)
).state_dict()
executor = PromptExecutor(FluxModel().cuda().half(), ip_ckpt)
for run in range(RUNS):
    # CURE
    picture = executor.execute(torch.rand(1, 3, 224, 224), weight=0.6 + 0.1 * run)
print(picture.shape)
