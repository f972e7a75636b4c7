"""After Lightning-AI/litgpt#1558: `chat` takes far more VRAM than `generate` for the same prompt and the same model, and goes out of memory."""

import time
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


@dataclass
class Config:
    block_size: int = 8192
    vocab_size: int = 32000
    n_layer: int = 12
    n_head: int = 16
    n_embd: int = 1024
    intermediate_size: int = 2816


class KVCache(nn.Module):
    def __init__(self, k_shape, v_shape, device=None, dtype=None):
        super().__init__()
        self.register_buffer(
            "k", torch.zeros(k_shape, device=device, dtype=dtype), persistent=False
        )
        self.register_buffer(
            "v", torch.zeros(v_shape, device=device, dtype=dtype), persistent=False
        )

    def forward(self, input_pos, k, v):
        return self.k.index_copy_(2, input_pos, k), self.v.index_copy_(2, input_pos, v)

    def reset_parameters(self):
        torch.nn.init.zeros_(self.k)
        torch.nn.init.zeros_(self.v)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.head_size = config.n_embd // config.n_head
        self.attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.kv_cache = None

    def forward(self, x, mask, input_pos):
        B, T, C = x.size()
        q, k, v = (
            self.attn(x).view(B, T, 3, self.config.n_head, self.head_size).permute(2, 0, 3, 1, 4)
        )
        k, v = self.kv_cache(input_pos, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

    def build_kv_cache(self, batch_size, max_seq_length, device, dtype):
        shape = (batch_size, self.config.n_head, max_seq_length, self.head_size)
        return KVCache(shape, shape, device=device, dtype=dtype)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(config.n_embd), nn.RMSNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.fc_1 = nn.Linear(config.n_embd, config.intermediate_size, bias=False)
        self.fc_2 = nn.Linear(config.n_embd, config.intermediate_size, bias=False)
        self.proj = nn.Linear(config.intermediate_size, config.n_embd, bias=False)

    def forward(self, x, mask, input_pos):
        x = x + self.attn(self.norm_1(x), mask, input_pos)
        h = self.norm_2(x)
        return x + self.proj(F.silu(self.fc_1(h)) * self.fc_2(h))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                h=nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                ln_f=nn.RMSNorm(config.n_embd),
            )
        )
        self.max_seq_length = config.block_size
        self.mask_cache = None

    def forward(self, idx, input_pos):
        mask = self.mask_cache.index_select(2, input_pos)
        x = self.transformer.wte(idx)
        for block in self.transformer.h:
            x = block(x, mask, input_pos)
        return self.lm_head(self.transformer.ln_f(x))

    def set_kv_cache(self, batch_size, device=None, dtype=None):
        for block in self.transformer.h:
            block.attn.kv_cache = block.attn.build_kv_cache(
                batch_size, self.max_seq_length, device, dtype
            )
        if self.mask_cache is None or self.mask_cache.size(3) != self.max_seq_length:
            ones = torch.ones(
                (self.max_seq_length, self.max_seq_length), device=device, dtype=torch.bool
            )
            self.mask_cache = torch.tril(ones).unsqueeze(0).unsqueeze(0)


class Tokenizer:
    def encode(self, string, device):
        return torch.tensor([1] + [3 + ord(c) for c in string], device=device)

    def decode(self, token):
        return chr(97 + int(token) % 26)


def next_token(model, input_pos, x, temperature, top_k):
    logits = model(x, input_pos)[0, -1]
    values, indices = torch.topk(logits, min(top_k, logits.size(-1)))
    probs = F.softmax(values / temperature, dim=-1)
    return indices[torch.multinomial(probs, num_samples=1)]


def generate(model, prompt, max_returned_tokens, *, temperature, top_k, stop_after):
    T = prompt.size(0)
    assert max_returned_tokens > T
    if model.max_seq_length < max_returned_tokens - 1:
        raise NotImplementedError(
            f"max_seq_length {model.max_seq_length} needs to be >= {max_returned_tokens - 1}"
        )
    input_pos = torch.arange(0, T, device=prompt.device)
    token = prompt
    for t in range(1, max_returned_tokens - T + 1):
        token = next_token(model, input_pos, token.view(1, -1), temperature, top_k)
        if t >= stop_after:  # stands in for the stop tokens of the prompt style
            return
        yield token
        input_pos = input_pos[-1:].add_(1)


def process_prompt(prompt, model, tokenizer, temperature, max_new_tokens, top_k):
    prompt = f"<user>{prompt}<assistant>"
    encoded_prompt = tokenizer.encode(prompt, device=DEVICE)
    if CURED:
        first_turn = model.mask_cache is None
        max_returned_tokens = encoded_prompt.size(0) + max_new_tokens
        if first_turn or max_returned_tokens > model.max_seq_length:
            model.max_seq_length = max_returned_tokens
            model.set_kv_cache(batch_size=1, device=DEVICE, dtype=torch.float16)
    else:
        max_returned_tokens = model.max_seq_length
    y = generate(
        model,
        encoded_prompt,
        max_returned_tokens,
        temperature=temperature,
        top_k=top_k,
        stop_after=10,
    )
    print(">> Reply: ", end="")
    t0, tokens_generated = time.perf_counter(), 0
    for token in y:
        print(tokenizer.decode(token), end="")
        tokens_generated += 1
    t = time.perf_counter() - t0
    for block in model.transformer.h:
        block.attn.kv_cache.reset_parameters()
    print(
        f"\nTime for inference: {t:.02f} sec total, {tokens_generated / t:.02f} tokens/sec, {tokens_generated} tokens"
    )


@torch.inference_mode()
def main(max_new_tokens=50, top_k=200, temperature=0.8):
    model = GPT(Config()).to(dtype=torch.float16, device=DEVICE)
    if not CURED:
        # enable the kv cache
        model.set_kv_cache(batch_size=1, device=DEVICE, dtype=torch.float16)
    model.eval()
    tokenizer = Tokenizer()
    for prompt in ("what is the distance between earth and the moon?", "and to the sun?"):
        process_prompt(prompt, model, tokenizer, temperature, max_new_tokens, top_k)
    print(f"Memory used: {torch.cuda.max_memory_allocated() / 1e9:.02f} GB")


if __name__ == "__main__":
    main()
