"""After NVIDIA/Megatron-LM#7111: at a very long sequence length each attention layer adds half a GiB that is not weights."""

from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


@dataclass
class MLATransformerConfig:
    num_layers: int = 10
    hidden_size: int = 384
    num_attention_heads: int = 6
    kv_lora_rank: int = 128
    qk_head_dim: int = 64
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 64
    rotary_base: float = 10000.0
    max_position_embeddings: int = 131072
    vocab_size: int = 4000
    share_rotary_pos_emb: bool = CURED


class RotaryEmbedding(nn.Module):
    def __init__(self, kv_channels, rotary_base, max_position_embeddings):
        super().__init__()
        inv_freq = 1.0 / rotary_base ** (
            torch.arange(0, kv_channels, 2, dtype=torch.float32, device=DEVICE) / kv_channels
        )
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.max_seq_len_cached = 0
        self._set_cos_sin_cache(max_position_embeddings, torch.bfloat16)

    def _set_cos_sin_cache(self, seq_len, dtype):
        self.max_seq_len_cached = seq_len
        emb = self.get_emb(seq_len)
        self.register_buffer("emb_cached", emb, persistent=False)
        self.register_buffer("cos_cached", emb.cos().to(dtype).contiguous(), persistent=False)
        self.register_buffer("sin_cached", emb.sin().to(dtype).contiguous(), persistent=False)

    def get_emb(self, seq_len):
        seq = torch.arange(seq_len, device=self.inv_freq.device, dtype=torch.float32)
        freqs = torch.outer(seq, self.inv_freq)
        return torch.cat((freqs, freqs), dim=-1)

    def get_cached_cos_sin(self, seq_len, dtype):
        if seq_len > self.max_seq_len_cached:
            self._set_cos_sin_cache(seq_len, dtype)
        return self.cos_cached[:seq_len].float(), self.sin_cached[:seq_len].float()


def maybe_share_rotary_pos_emb(config, cache_key, build):
    if not config.share_rotary_pos_emb:
        return build()
    cache = config.__dict__.setdefault("_rotary_pos_emb_cache", {})
    if cache_key not in cache:
        cache[cache_key] = build()
    return cache[cache_key]


def apply_rotary_pos_emb(t, cos, sin):
    t1, t2 = t.chunk(2, dim=-1)
    return t * cos + torch.cat((-t2, t1), dim=-1) * sin


class MLASelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        n, d, r = config.num_attention_heads, config.qk_head_dim, config.qk_pos_emb_head_dim
        self.rotary_pos_emb = maybe_share_rotary_pos_emb(
            config,
            ("rope", r, config.rotary_base, config.max_position_embeddings),
            lambda: RotaryEmbedding(r, config.rotary_base, config.max_position_embeddings),
        )
        self.linear_q_proj = nn.Linear(config.hidden_size, n * (d + r), bias=False)
        self.linear_kv_down_proj = nn.Linear(
            config.hidden_size, config.kv_lora_rank + r, bias=False
        )
        self.linear_kv_up_proj = nn.Linear(
            config.kv_lora_rank, n * (d + config.v_head_dim), bias=False
        )
        self.linear_proj = nn.Linear(n * config.v_head_dim, config.hidden_size, bias=False)

    def forward(self, x):
        b, s, _ = x.shape
        cfg = self.config
        n, d, r = cfg.num_attention_heads, cfg.qk_head_dim, cfg.qk_pos_emb_head_dim
        cos, sin = self.rotary_pos_emb.get_cached_cos_sin(s, torch.bfloat16)
        q_no_pe, q_pe = (
            self.linear_q_proj(x).view(b, s, n, d + r).transpose(1, 2).split([d, r], dim=-1)
        )
        kv, k_pe = self.linear_kv_down_proj(x).split([cfg.kv_lora_rank, r], dim=-1)
        k_no_pe, v = (
            self.linear_kv_up_proj(kv)
            .view(b, s, n, -1)
            .transpose(1, 2)
            .split([d, cfg.v_head_dim], dim=-1)
        )
        q = torch.cat([q_no_pe, apply_rotary_pos_emb(q_pe, cos, sin)], dim=-1)
        k = torch.cat(
            [k_no_pe, apply_rotary_pos_emb(k_pe[:, None], cos, sin).expand(-1, n, -1, -1)], dim=-1
        )
        v = F.pad(v, (0, d + r - cfg.v_head_dim))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., : cfg.v_head_dim]
        return self.linear_proj(out.transpose(1, 2).reshape(b, s, -1))


class TransformerLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        h = config.hidden_size
        self.input_layernorm, self.pre_mlp_layernorm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.self_attention = MLASelfAttention(config)
        self.mlp = nn.Sequential(nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h))

    def forward(self, x):
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.pre_mlp_layernorm(x))


config = MLATransformerConfig()
embedding = nn.Embedding(config.vocab_size, config.hidden_size).to(DEVICE)
decoder = nn.ModuleList([TransformerLayer(config) for _ in range(config.num_layers)]).to(DEVICE)
output_layer = nn.Linear(config.hidden_size, config.vocab_size, bias=False).to(DEVICE)
params = [p for m in (embedding, decoder, output_layer) for p in m.parameters()]
optimizer = torch.optim.AdamW(params, lr=1e-4)
print(
    f"{sum(p.numel() for p in params) / 1e6:.1f} M parameters, {torch.cuda.memory_allocated() / 2**20:.0f} MB"
)

for iteration in range(4):
    tokens = torch.randint(0, config.vocab_size, (1, 1025), device=DEVICE)
    hidden = embedding(tokens[:, :-1])
    for layer in decoder:
        hidden = layer(hidden)
    loss = F.cross_entropy(output_layer(hidden).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"iteration {iteration} lm loss {loss.item():.4f}")
