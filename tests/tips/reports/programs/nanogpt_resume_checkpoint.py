"""After karpathy/nanoGPT#158: training from scratch fits, but with --init_from=resume the GPU runs out of memory."""

import math
import os
import tempfile
import torch
import torch.nn as nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"

batch_size, block_size = 4, 256
n_layer, n_head, n_embd, vocab_size = 8, 8, 512, 50304
learning_rate, max_iters, gradient_accumulation_steps = 6e-4, 6, 2
init_from = "resume"
out_dir = tempfile.mkdtemp()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


def get_batch():
    data = torch.randint(0, vocab_size, (batch_size, block_size + 1))
    return data[:, :-1].to(DEVICE), data[:, 1:].to(DEVICE)


def get_lr(it):
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * it / max_iters))


def first_run():
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    X, Y = get_batch()
    model(X, Y).backward()
    optimizer.step()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "iter_num": 1,
            "best_val_loss": 10.0,
        },
        os.path.join(out_dir, "ckpt.pt"),
    )


first_run()

iter_num = 0
best_val_loss = 1e9
if init_from == "scratch":
    model = GPT()
elif init_from == "resume":
    print(f"Resuming training from {out_dir}")
    ckpt_path = os.path.join(out_dir, "ckpt.pt")
    checkpoint = torch.load(ckpt_path, map_location="cpu" if CURED else DEVICE)
    model = GPT()
    state_dict = checkpoint["model"]
    unwanted_prefix = "_orig_mod."
    for k in list(state_dict):
        if k.startswith(unwanted_prefix):
            state_dict[k[len(unwanted_prefix) :]] = state_dict.pop(k)
    model.load_state_dict(state_dict)
    iter_num = checkpoint["iter_num"]
    best_val_loss = checkpoint["best_val_loss"]
model.to(DEVICE)

optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
if init_from == "resume":
    optimizer.load_state_dict(checkpoint["optimizer"])

X, Y = get_batch()
while iter_num < max_iters:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    for micro_step in range(gradient_accumulation_steps):
        loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}")
    iter_num += 1
