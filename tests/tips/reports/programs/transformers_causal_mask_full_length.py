"""After huggingface/transformers#29484: the same fine-tuning that fitted with 4.37.2 is out of memory with 4.38.2."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class LlamaConfig:
    vocab_size = 8000
    hidden_size = 512
    intermediate_size = 1376
    num_hidden_layers = 6
    num_attention_heads = 8
    max_position_embeddings = 8192


class LlamaSdpaAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        h = config.hidden_size
        self.num_heads, self.head_dim = config.num_attention_heads, h // config.num_attention_heads
        self.q_proj, self.k_proj = nn.Linear(h, h, bias=False), nn.Linear(h, h, bias=False)
        self.v_proj, self.o_proj = nn.Linear(h, h, bias=False), nn.Linear(h, h, bias=False)

    def forward(self, hidden_states, attention_mask):
        bsz, q_len, _ = hidden_states.size()
        shape = (bsz, q_len, self.num_heads, self.head_dim)
        query_states = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        causal_mask = attention_mask[:, :, :q_len, : key_states.shape[-2]]
        attn_output = F.scaled_dot_product_attention(
            query_states, key_states, value_states, attn_mask=causal_mask
        )
        return self.o_proj(attn_output.transpose(1, 2).reshape(bsz, q_len, -1))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        h, i = config.hidden_size, config.intermediate_size
        self.self_attn = LlamaSdpaAttention(config)
        self.gate_proj, self.up_proj = nn.Linear(h, i, bias=False), nn.Linear(h, i, bias=False)
        self.down_proj = nn.Linear(i, h, bias=False)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(h), nn.RMSNorm(h)

    def forward(self, hidden_states, attention_mask):
        hidden_states = hidden_states + self.self_attn(
            self.input_layernorm(hidden_states), attention_mask
        )
        x = self.post_attention_layernorm(hidden_states)
        return hidden_states + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            [LlamaDecoderLayer(config) for _ in range(config.num_hidden_layers)]
        )
        self.norm = nn.RMSNorm(config.hidden_size)
        if not CURED:
            causal_mask = torch.full(
                (config.max_position_embeddings, config.max_position_embeddings),
                fill_value=True,
                dtype=torch.bool,
            )
            self.register_buffer(
                "causal_mask", torch.triu(causal_mask, diagonal=1), persistent=False
            )

    def _update_causal_mask(self, attention_mask, input_tensor):
        batch_size, seq_length = input_tensor.shape[:2]
        dtype, device = input_tensor.dtype, input_tensor.device
        min_dtype = torch.finfo(dtype).min
        if CURED:
            causal_mask = torch.full(
                (seq_length, seq_length), fill_value=min_dtype, dtype=dtype, device=device
            )
            causal_mask = (
                torch.triu(causal_mask, diagonal=1)[None, None]
                .expand(batch_size, 1, -1, -1)
                .clone()
            )
        else:
            causal_mask = (
                self.causal_mask[None, None, :, :].repeat(batch_size, 1, 1, 1).to(dtype) * min_dtype
            )
        mask_length = attention_mask.shape[-1]
        padding_mask = causal_mask[..., :mask_length].eq(0.0) * attention_mask[:, None, None, :].eq(
            0.0
        )
        causal_mask[..., :mask_length] = causal_mask[..., :mask_length].masked_fill(
            padding_mask, min_dtype
        )
        return causal_mask

    def forward(self, input_ids, attention_mask):
        hidden_states = self.embed_tokens(input_ids)
        causal_mask = self._update_causal_mask(attention_mask, hidden_states)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states, causal_mask)
        return self.norm(hidden_states)


class LlamaForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model = LlamaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, attention_mask, labels):
        logits = self.lm_head(self.model(input_ids, attention_mask))
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )


config = LlamaConfig()
model = LlamaForCausalLM(config).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
per_device_train_batch_size, model_max_length = 2, 512

for step in range(4):
    input_ids = torch.randint(3, config.vocab_size, (per_device_train_batch_size, model_max_length))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[0, 400:] = 0
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    loss = model(input_ids.to(DEVICE), attention_mask.to(DEVICE), labels.to(DEVICE))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print({"step": step, "loss": round(loss.item(), 4)})
