"""After ExponentialML/Text-To-Video-Finetuning#72: out of memory when the weights are saved."""

import copy
import gc
import os
import tempfile

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CURED = False
DIM, LAYERS, FRAMES, LATENT, TEXT_DIM = 768, 8, 8, 16, 768


class Attention(nn.Module):
    def __init__(self, dim, context_dim, heads=8):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(context_dim, dim, bias=False)
        self.to_v = nn.Linear(context_dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(DIM) for _ in range(3))
        self.attn1 = Attention(DIM, DIM)
        self.attn2 = Attention(DIM, TEXT_DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
        self.temp_conv = nn.Sequential(
            nn.Conv1d(DIM, 2 * DIM, 3, padding=1), nn.SiLU(), nn.Conv1d(2 * DIM, DIM, 3, padding=1)
        )

    def forward(self, x, context):
        h = self.norm1(x)
        x = x + self.attn1(h, h)
        x = x + self.attn2(self.norm2(x), context)
        x = x + self.ff(self.norm3(x))
        frames = self.temp_conv(x.permute(1, 2, 0))
        return x + frames.permute(2, 0, 1)


class UNet3DConditionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Linear(4, DIM)
        self.blocks = nn.ModuleList(TransformerBlock() for _ in range(LAYERS))
        self.conv_out = nn.Linear(DIM, 4)

    def forward(self, latents, encoder_hidden_states):
        b, c, f, h, w = latents.shape
        x = self.conv_in(latents.permute(0, 2, 3, 4, 1).reshape(b * f, h * w, c))
        context = encoder_hidden_states.repeat_interleave(f, dim=0)
        for block in self.blocks:
            x = checkpoint(block, x, context, use_reentrant=False)
        return self.conv_out(x).view(b, f, h, w, c).permute(0, 4, 1, 2, 3)


class CLIPTextModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(49408, TEXT_DIM)
        self.layers = nn.Sequential(*[nn.Linear(TEXT_DIM, TEXT_DIM) for _ in range(8)])

    def forward(self, ids):
        return self.layers(self.embed(ids))


class TextToVideoSDPipeline:
    def __init__(self, **components):
        self.components = components

    def to(self, torch_dtype):
        for model in self.components.values():
            model.to(torch_dtype)
        return self

    def save_pretrained(self, save_path):
        for name, model in self.components.items():
            torch.save(model.state_dict(), os.path.join(save_path, f"{name}.pt"))


def handle_trainable_modules(model, trainable_modules=("attn1", "attn2")):
    for name, module in model.named_modules():
        if any(name.endswith(trainable) for trainable in trainable_modules):
            module.requires_grad_(True)


def save_pipe(unet, text_encoder, vae, output_dir):
    text_dtype, vae_dtype = text_encoder.embed.weight.dtype, vae[0].weight.dtype
    if CURED:
        unet.cpu(), text_encoder.cpu()
    # copy the models, so that the training can go on with the originals
    unet_out = copy.deepcopy(unet)
    text_encoder_out = copy.deepcopy(text_encoder)
    pipeline = TextToVideoSDPipeline(unet=unet_out, text_encoder=text_encoder_out, vae=vae)
    pipeline.to(torch_dtype=torch.float32)
    pipeline.save_pretrained(output_dir)
    unet.to("cuda"), text_encoder.to("cuda", dtype=text_dtype), vae.to(dtype=vae_dtype)
    del pipeline, unet_out, text_encoder_out
    gc.collect()
    torch.cuda.empty_cache()


unet, text_encoder = UNet3DConditionModel(), CLIPTextModel()
vae = nn.Sequential(nn.Conv2d(3, 128, 3, 2, 1), nn.SiLU(), nn.Conv2d(128, 4, 3, 4, 1))
for model in (unet, text_encoder, vae):
    model.requires_grad_(False)
handle_trainable_modules(unet)
unet.to("cuda").train()
for model in (text_encoder, vae):
    model.to("cuda", dtype=torch.float16)
trainable = [p for p in unet.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=5e-6)
checkpointing_steps = 3

with tempfile.TemporaryDirectory() as output_dir:
    for global_step in range(1, 5):
        pixel_values = torch.randn(FRAMES, 3, 8 * LATENT, 8 * LATENT, device="cuda")
        with torch.no_grad():
            latents = vae(pixel_values.half()).float() * 0.18215
            prompt_ids = torch.randint(0, 49408, (1, 77), device="cuda")
            encoder_hidden_states = text_encoder(prompt_ids).float()
        latents = latents.transpose(0, 1).unsqueeze(0)
        noise = torch.randn_like(latents)
        model_pred = unet(latents + noise, encoder_hidden_states)
        loss = F.mse_loss(model_pred, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if global_step % checkpointing_steps == 0:
            save_pipe(unet, text_encoder, vae, output_dir)
        print("step", global_step, "loss", loss.detach().item())
