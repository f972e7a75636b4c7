"""After victorchall/EveryDream2trainer#246: with the unet's training disabled, memory runs out."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CURED = False
BATCH, SIDE, STEPS = 8, 64, 3
args = argparse.Namespace(
    gradient_checkpointing=True, disable_unet_training=True, disable_textenc_training=False
)


class TextEncoder(nn.Module):
    def __init__(self, width=768, layers=4):
        super().__init__()
        self.embeddings = nn.Embedding(49408, width)
        layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, input_ids):
        return self.encoder(self.embeddings(input_ids))


class UNetBlock(nn.Module):
    def __init__(self, channels=320, context=768, heads=8):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.GroupNorm(32, channels), nn.GroupNorm(32, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(320, channels)
        self.norm3, self.to_q = nn.LayerNorm(channels), nn.Linear(channels, channels)
        self.to_k, self.to_v = nn.Linear(context, channels), nn.Linear(context, channels)
        self.to_out = nn.Linear(channels, channels)

    def forward(self, x, emb, encoder_hidden_states):
        h = self.conv1(F.silu(self.norm1(x))) + self.time_emb_proj(emb)[:, :, None, None]
        x = x + self.conv2(F.silu(self.norm2(h)))
        b, c, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q = self.to_q(self.norm3(tokens))
        k, v = self.to_k(encoder_hidden_states), self.to_v(encoder_hidden_states)
        q, k, v = (t.view(b, -1, self.heads, c // self.heads).transpose(1, 2) for t in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, -1, c)
        return x + self.to_out(attended).transpose(1, 2).view(b, c, height, width)


class UNet2DConditionModel(nn.Module):
    def __init__(self, blocks=12):
        super().__init__()
        self.gradient_checkpointing = False
        self.time_embedding = nn.Embedding(1000, 320)
        self.conv_in, self.conv_out = nn.Conv2d(4, 320, 3, 1, 1), nn.Conv2d(320, 4, 3, 1, 1)
        self.blocks = nn.ModuleList(UNetBlock() for _ in range(blocks))

    def enable_gradient_checkpointing(self):
        self.gradient_checkpointing = True

    def forward(self, sample, timestep, encoder_hidden_states):
        emb, sample = self.time_embedding(timestep), self.conv_in(sample)
        for block in self.blocks:
            if self.training and self.gradient_checkpointing:
                sample = checkpoint(block, sample, emb, encoder_hidden_states, use_reentrant=False)
            else:
                sample = block(sample, emb, encoder_hidden_states)
        return self.conv_out(sample)


def get_model_prediction_and_target(batch, vae, text_encoder, unet):
    with torch.no_grad():
        latents = vae(batch["image"].cuda()) * 0.18215
    noise = torch.randn_like(latents)
    timesteps = torch.randint(0, 1000, (len(latents),), device="cuda")
    sigma = (timesteps.float() / 1000)[:, None, None, None]
    noisy_latents = latents * (1 - sigma) + noise * sigma
    encoder_hidden_states = text_encoder(batch["tokens"].cuda())
    with torch.autocast("cuda", dtype=torch.float16):
        model_pred = unet(noisy_latents, timesteps, encoder_hidden_states)
    return model_pred, noise


vae = nn.Conv2d(3, 4, 8, stride=8).cuda().eval()
text_encoder, unet = TextEncoder().cuda(), UNet2DConditionModel().cuda()
if args.gradient_checkpointing:
    unet.enable_gradient_checkpointing()
optimizer = torch.optim.AdamW(text_encoder.parameters(), lr=1e-6)
unet.requires_grad_(not args.disable_unet_training)
if CURED:
    unet.train() if args.gradient_checkpointing or not args.disable_unet_training else unet.eval()
else:
    unet.train() if not args.disable_unet_training else unet.eval()
text_encoder.train() if not args.disable_textenc_training else text_encoder.eval()
# CURE
loss_log_step = []
for step in range(STEPS):
    batch = {
        "image": torch.rand(BATCH, 3, 8 * SIDE, 8 * SIDE),
        "tokens": torch.randint(0, 49408, (BATCH, 77)),
    }
    model_pred, target = get_model_prediction_and_target(batch, vae, text_encoder, unet)
    loss = F.mse_loss(model_pred.float(), target.float())
    del target, model_pred
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss_log_step.append(loss.detach().item())
print(len(loss_log_step))
