"""After huggingface/diffusers#3463: images of 1024 x 1024 need 2 GB more than their attention."""

import math

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
LATENTS, HEADS, CHANNELS, TEXT, CROSS, STEPS, BATCH = 40, 8, 256, 77, 512, 4, 2


class Attention(nn.Module):
    def __init__(self, query_dim, cross_attention_dim=None):
        super().__init__()
        self.heads, self.scale = HEADS, (query_dim // HEADS) ** -0.5
        context_dim = cross_attention_dim or query_dim
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(context_dim, query_dim, bias=False)
        self.to_v = nn.Linear(context_dim, query_dim, bias=False)
        self.to_out = nn.Linear(query_dim, query_dim)

    def head_to_batch_dim(self, tensor):
        return tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1).contiguous()

    def batch_to_head_dim(self, tensor):
        return tensor.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)

    def get_attention_scores(self, query, key, attention_mask=None):
        if attention_mask is None:
            baddbmm_input = torch.empty(
                query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype, device=query.device
            )
            beta = 0
        else:
            baddbmm_input, beta = attention_mask, 1
        attention_scores = torch.baddbmm(
            baddbmm_input, query, key.transpose(-1, -2), beta=beta, alpha=self.scale
        )
        if CURED:
            del baddbmm_input
        attention_probs = attention_scores.softmax(dim=-1)
        if CURED:
            del attention_scores
        return attention_probs.to(query.dtype)

    def forward(self, hidden_states, encoder_hidden_states=None):
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = self.head_to_batch_dim(self.to_q(hidden_states))
        key = self.head_to_batch_dim(self.to_k(context))
        value = self.head_to_batch_dim(self.to_v(context))
        attention_probs = self.get_attention_scores(query, key)
        hidden_states = torch.bmm(attention_probs, value)
        return self.to_out(self.batch_to_head_dim(hidden_states))


class BasicTransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(CHANNELS) for _ in range(3))
        self.attn1, self.attn2 = Attention(CHANNELS), Attention(CHANNELS, CROSS)
        self.ff = nn.Sequential(
            nn.Linear(CHANNELS, 4 * CHANNELS), nn.GELU(), nn.Linear(4 * CHANNELS, CHANNELS)
        )

    def forward(self, x, context):
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class UNet2DConditionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv_in = nn.Conv2d(4, CHANNELS, 3, padding=1)
        self.down, self.up = BasicTransformerBlock(), BasicTransformerBlock()
        self.mid = BasicTransformerBlock()
        self.conv_out = nn.Conv2d(CHANNELS, 4, 3, padding=1)
        self.time_embedding = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, sample, timestep, encoder_hidden_states):
        frequencies = torch.exp(torch.arange(CHANNELS, device=DEVICE) * -math.log(1e4) / CHANNELS)
        emb = self.time_embedding(torch.sin(timestep * frequencies))
        x = self.conv_in(sample) + emb[:, None, None]
        skip = self.attend(self.down, x, encoder_hidden_states)
        x = self.attend(self.mid, F.avg_pool2d(skip, 2), encoder_hidden_states)
        x = self.attend(self.up, F.interpolate(x, scale_factor=2) + skip, encoder_hidden_states)
        return self.conv_out(x)

    def attend(self, block, x, context):
        out = block(x.flatten(2).transpose(1, 2), context)
        return out.transpose(1, 2).unflatten(2, x.shape[2:])


@torch.no_grad()
def pipe(unet, prompt_embeds, guidance_scale=7.5):
    latents = torch.randn(BATCH, 4, LATENTS, LATENTS, device=DEVICE)
    for t in torch.linspace(999, 0, STEPS).tolist():
        latent_model_input = torch.cat([latents] * 2)
        noise_pred_uncond, noise_pred_text = unet(latent_model_input, t, prompt_embeds).chunk(2)
        noise_pred = noise_pred_uncond + guidance_scale * (noise_pred_text - noise_pred_uncond)
        latents = latents - 0.1 * noise_pred
    return latents


unet = UNet2DConditionModel().to(DEVICE)
prompt_embeds = torch.randn(2 * BATCH, TEXT, CROSS).to(DEVICE)
print(pipe(unet, prompt_embeds).std().item())
