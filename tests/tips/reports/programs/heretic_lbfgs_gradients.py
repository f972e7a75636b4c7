"""After p-e-w/heretic#426: after the matrices were optimized, many GiB stay taken and the evaluation goes out of memory."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
HIDDEN, INTERMEDIATE, LAYERS, VOCAB = 896, 2816, 12, 8000


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = (
            nn.Linear(HIDDEN, HIDDEN, bias=False),
            nn.Linear(HIDDEN, 128, bias=False),
        )
        self.v_proj, self.o_proj = (
            nn.Linear(HIDDEN, 128, bias=False),
            nn.Linear(HIDDEN, HIDDEN, bias=False),
        )

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, -1, 64).transpose(1, 2)
        k = self.k_proj(x).view(b, t, -1, 64).transpose(1, 2).repeat_interleave(7, dim=1)
        v = self.v_proj(x).view(b, t, -1, 64).transpose(1, 2).repeat_interleave(7, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (
            nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
            nn.Linear(HIDDEN, INTERMEDIATE, bias=False),
        )
        self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), MLP()
        self.input_layernorm, self.post_attention_layernorm = (
            nn.LayerNorm(HIDDEN),
            nn.LayerNorm(HIDDEN),
        )

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList([DecoderLayer() for _ in range(LAYERS)])
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x[:, -1])


def get_layer_modules(model):
    for i, layer in enumerate(model.layers):
        yield (i, "attn.o_proj"), layer.self_attn.o_proj
        yield (i, "mlp.down_proj"), layer.mlp.down_proj


@torch.no_grad()
def get_module_io(model, prompts):
    """Inputs and outputs of each of the modules at the last token of the prompts, on the CPU."""
    module_io, handles = {}, []
    for key, module in get_layer_modules(model):

        def hook(mod, args, output, key=key):
            module_io[key] = (args[0][:, -1].cpu(), output[:, -1].cpu())

        handles.append(module.register_forward_hook(hook))
    model(prompts)
    for handle in handles:
        handle.remove()
    return module_io


def ara_abliterate(model, good_module_io, bad_module_io, overcorrect=1.0, steering=0.3):
    for key, module in get_layer_modules(model):
        good_in, good_out = (t.to(DEVICE) for t in good_module_io[key])
        bad_in, bad_out = (t.to(DEVICE) for t in bad_module_io[key])
        weight = module.weight
        weight.requires_grad_(True)
        optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=3, history_size=4)

        def closure():
            optimizer.zero_grad()
            preserve = F.mse_loss(F.linear(good_in, weight), good_out)
            new_bad = F.linear(bad_in, weight)
            steer = torch.cdist(new_bad, good_out).mean() - overcorrect * F.mse_loss(
                new_bad, bad_out
            )
            loss = preserve + steering * steer
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        weight.requires_grad_(False)
        if CURED:
            weight.grad = None
        print(f"  layer {key[0]} {key[1]}: {loss.item():.4f}")


model = CausalLM().to(DEVICE).requires_grad_(False).eval()
good_prompts = torch.randint(0, VOCAB, (64, 48), device=DEVICE)
bad_prompts = torch.randint(0, VOCAB, (64, 48), device=DEVICE)

print("Obtaining module inputs and outputs...")
good_module_io = get_module_io(model, good_prompts)
bad_module_io = get_module_io(model, bad_prompts)
with torch.no_grad():
    base_logprobs = torch.cat([model(p).log_softmax(-1).cpu() for p in good_prompts.split(16)])

print("Optimizing matrices...")
ara_abliterate(model, good_module_io, bad_module_io)

print("Evaluating...")
with torch.no_grad():
    logprobs = torch.cat([model(p).log_softmax(-1).cpu() for p in good_prompts.split(16)])
    kl_divergence = F.kl_div(logprobs, base_logprobs, reduction="batchmean", log_target=True).item()
    refusals = int(
        (torch.cat([model(p).argmax(-1) for p in bad_prompts.split(16)]) < 3).sum().item()
    )
print(f"  * KL divergence: {kl_divergence:.4f}, refusals: {refusals}/64")
