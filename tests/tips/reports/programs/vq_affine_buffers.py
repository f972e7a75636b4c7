"""After lucidrains/vector-quantize-pytorch#57: affine_param runs out of memory after a while."""

import torch
from torch import einsum, nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
BATCH, CLIP_DIM, DIM, CODEBOOK_SIZE, STEPS = 16_384, 256, 384, 512, 10


def ema_inplace(old, new, decay):
    old.mul_(decay).add_(new, alpha=1 - decay)


class EuclideanCodebook(nn.Module):
    def __init__(self, dim, codebook_size, decay=0.8, learnable_codebook=False, ema_update=True):
        super().__init__()
        self.decay, self.ema_update = decay, ema_update
        embed = torch.empty(codebook_size, dim).uniform_(-1, 1)
        self.register_buffer("cluster_size", torch.ones(codebook_size))
        self.register_buffer("embed_avg", embed.clone())
        self.learnable_codebook = learnable_codebook
        if learnable_codebook:
            self.embed = nn.Parameter(embed)
        else:
            self.register_buffer("embed", embed)
        # affine related params
        self.affine_param_batch_decay, self.affine_param_codebook_decay = 0.99, 0.9
        for name in ("batch_mean", "batch_variance", "codebook_mean", "codebook_variance"):
            self.register_buffer(name, None)

    def update_with_decay(self, buffer_name, new_value, decay):
        old_value = getattr(self, buffer_name)
        if CURED:
            new_value = new_value.detach()
        if old_value is None:
            self.register_buffer(buffer_name, new_value)
            return
        value = old_value * decay + new_value * (1 - decay)
        self.register_buffer(buffer_name, value)

    def update_affine(self, data, embed):
        for name, values, decay in (
            ("codebook", embed, self.affine_param_codebook_decay),
            ("batch", data, self.affine_param_batch_decay),
        ):
            self.update_with_decay(f"{name}_mean", values.mean(0, keepdim=True), decay)
            variance = values.var(0, unbiased=False, keepdim=True)
            self.update_with_decay(f"{name}_variance", variance, decay)

    def forward(self, flatten):
        self.update_affine(flatten, self.embed)
        embed = self.embed if self.learnable_codebook else self.embed.detach()
        codebook_std = self.codebook_variance.clamp(min=1e-5).sqrt()
        batch_std = self.batch_variance.clamp(min=1e-5).sqrt()
        embed = (embed - self.codebook_mean) * (batch_std / codebook_std) + self.batch_mean
        dist = -torch.cdist(flatten.detach(), embed.detach())
        embed_ind = dist.argmax(dim=-1)
        quantize = F.embedding(embed_ind, self.embed)
        if self.training and self.ema_update:
            self.update_codebook(flatten.detach(), embed_ind, codebook_std / batch_std)
        return quantize, embed_ind

    @torch.no_grad()
    def update_codebook(self, flatten, embed_ind, scale):
        embed_onehot = F.one_hot(embed_ind, len(self.embed)).to(flatten.dtype)
        flatten = (flatten - self.batch_mean) * scale + self.codebook_mean
        ema_inplace(self.cluster_size, embed_onehot.sum(0), self.decay)
        ema_inplace(self.embed_avg, einsum("n d, n c -> c d", flatten, embed_onehot), self.decay)
        self.embed.data.copy_(self.embed_avg / (self.cluster_size[:, None] + 1e-5))


class VectorQuantize(nn.Module):
    def __init__(self, dim, codebook_size, commitment_weight=1.0, **kwargs):
        super().__init__()
        self._codebook = EuclideanCodebook(dim, codebook_size, **kwargs)
        self.commitment_weight = commitment_weight

    def forward(self, x):
        quantize, embed_ind = self._codebook(x)
        commit_loss = F.mse_loss(quantize.detach(), x) + F.mse_loss(quantize, x.detach())
        quantize = x + (quantize - x).detach()
        return quantize, embed_ind, commit_loss * self.commitment_weight


class VQCLIP(nn.Module):
    """A small MLP and a VQ layer on top of CLIP embeddings"""

    def __init__(self):
        super().__init__()
        layers = nn.Linear(CLIP_DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM)
        self.in_feature_net = nn.Sequential(*layers)
        self.vq = VectorQuantize(DIM, CODEBOOK_SIZE, learnable_codebook=True, ema_update=False)
        self.out_feature_net = nn.Linear(DIM, CLIP_DIM)

    def forward(self, x):
        quantize, _, commit_loss = self.vq(self.in_feature_net(x))
        return self.out_feature_net(quantize), commit_loss


model = VQCLIP().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(STEPS):
    embedding = F.normalize(torch.randn(BATCH, CLIP_DIM), dim=1).to(DEVICE)
    reconstruction, commit_loss = model(embedding)
    loss = 1 - F.cosine_similarity(reconstruction, embedding).mean() + commit_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
