"""After facebookresearch/fairscale#424: models wrapped for activation checkpointing stay on the GPU after they were deleted."""

import functools
import weakref
import torch
import torch.nn as nn
import torch.utils.checkpoint as torch_checkpoint

CURED = False
DEVICE = "cuda"


def checkpoint_wrapper(module, preserve_rng_state=False):
    """Give back the same module, whose forward is made anew in the backward pass."""
    if CURED:
        module.forward = functools.partial(
            _checkpointed_forward, type(module).forward, weakref.ref(module), preserve_rng_state
        )
    else:
        module.forward = functools.partial(
            _checkpointed_forward, module.forward, None, preserve_rng_state
        )
    return module


def _checkpointed_forward(original_forward, weak_self, preserve_rng_state, *args):
    if weak_self is not None:
        original_forward = functools.partial(original_forward, weak_self())
    if not torch.is_grad_enabled():
        return original_forward(*args)
    return torch_checkpoint.checkpoint(
        original_forward, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state
    )


class FeedForward(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, mult * dim), nn.Linear(mult * dim, dim)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class SelfAttention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class TransformerLM(nn.Module):
    def __init__(self, vocab=6000, dim=512, depth=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layers = []
        for _ in range(depth):
            layers.append(checkpoint_wrapper(SelfAttention(dim)))
            layers.append(checkpoint_wrapper(FeedForward(dim)))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


def batches(n, vocab=6000):
    for _ in range(n):
        yield torch.randint(0, vocab, (4, 257)).to(DEVICE)


def run_trial(lr, weight_decay, steps=3):
    model = TransformerLM().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)
    for ids in batches(steps):
        optimizer.zero_grad()
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        total = 0.0
        for ids in batches(2):
            total += nn.functional.cross_entropy(
                model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
            ).item()
    return total / 2


results = {}
for lr in (0.3, 0.1, 0.03):
    for weight_decay in (0.0, 1e-4):
        results[lr, weight_decay] = run_trial(lr, weight_decay)
        print(
            f"lr {lr} weight decay {weight_decay}: valid loss {results[lr, weight_decay]:.4f}, "
            f"allocated {torch.cuda.memory_allocated() / 2**20:.0f} MB"
        )
print(f"{len(results)} trials done")
