"""After neuralmagic/AutoFP8#16: quantizing the weights of a model that fits runs out of memory, although each layer gets smaller."""

import copy
import gc
import re
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


def cleanup_memory():
    gc.collect()
    torch.cuda.empty_cache()


def per_tensor_quantize(tensor):
    finfo = torch.finfo(torch.float8_e4m3fn)
    min_val, max_val = tensor.aminmax()
    amax = torch.maximum(min_val.abs(), max_val.abs())
    scale = finfo.max / amax.clamp(min=1e-12)
    qweight = (tensor * scale).clamp(min=finfo.min, max=finfo.max)
    qweight = qweight.to(torch.float8_e4m3fn)
    return qweight, scale.float().reciprocal()


class FP8DynamicLinear(nn.Module):
    def __init__(self, qweight, scale, bias):
        super().__init__()
        self.weight = nn.Parameter(qweight, requires_grad=False)
        self.weight_scale = nn.Parameter(scale, requires_grad=False)
        self.bias = bias

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.weight_scale.to(x.dtype), self.bias)


def replace_module(model, name, new_module):
    parent_name, _, child_name = name.rpartition(".")
    parent = model.get_submodule(parent_name) if parent_name else model
    setattr(parent, child_name, new_module)


def quantize_weights(model, quantize_config):
    named_modules = list(model.named_modules())
    for name, linear in named_modules:
        if not isinstance(linear, nn.Linear) or name in quantize_config["ignored_layers"]:
            continue
        quant_weight, quant_scale = per_tensor_quantize(linear.weight.data)
        if CURED:
            bias = copy.deepcopy(linear.bias) if linear.bias is not None else None
            quant_linear = FP8DynamicLinear(quant_weight, quant_scale, bias)
            replace_module(model, name, quant_linear)
            del linear.weight
            del linear.bias
        else:
            quant_linear = FP8DynamicLinear(quant_weight, quant_scale, linear.bias)
            replace_module(model, name, quant_linear)
        del linear
    cleanup_memory()


@torch.no_grad()
def calibrate(model, calibration_tokens):
    nll = 0.0
    for row_idx in range(calibration_tokens.shape[0]):
        row = calibration_tokens[row_idx].reshape(1, -1)
        logits = model(row)
        nll += F.cross_entropy(logits[0, :-1].float(), row[0, 1:]).item()
    return nll / calibration_tokens.shape[0]


class DecoderLayer(nn.Module):
    def __init__(self, dim, ffn, heads):
        super().__init__()
        self.heads = heads
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
        )
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.gate_proj, self.up_proj = (
            nn.Linear(dim, ffn, bias=False),
            nn.Linear(dim, ffn, bias=False),
        )
        self.down_proj = nn.Linear(ffn, dim, bias=False)

    def forward(self, x):
        h = self.input_layernorm(x)
        q, k, v = (
            p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        x = x + self.o_proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class CausalLM(nn.Module):
    def __init__(self, vocab_size=8000, dim=1024, ffn=2816, layers=8, heads=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList([DecoderLayer(dim, ffn, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class AutoFP8ForCausalLM:
    def __init__(self, model, quantize_config):
        self.model, self.quantize_config = model, quantize_config

    @classmethod
    def from_pretrained(cls, quantize_config):
        model = CausalLM().to(torch.bfloat16).to(DEVICE).eval()
        patterns = [p[3:] for p in quantize_config["ignore_patterns"] if p.startswith("re:")]
        quantize_config["ignored_layers"] = [
            n for n, _ in model.named_modules() if any(re.search(p, n) for p in patterns)
        ]
        return cls(model, quantize_config)

    def quantize(self, calibration_tokens):
        print(f"before: {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
        quantize_weights(self.model, self.quantize_config)
        print(
            f"after: {torch.cuda.memory_allocated() / 2**20:.0f} MiB, the most {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
        )
        print(f"loss on the calibration data {calibrate(self.model, calibration_tokens):.3f}")


def main():
    quantize_config = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "ignore_patterns": ["re:.*lm_head"],
    }
    calibration_tokens = torch.randint(0, 8000, (2, 128)).to(DEVICE)
    model = AutoFP8ForCausalLM.from_pretrained(quantize_config)
    model.quantize(calibration_tokens)


if __name__ == "__main__":
    main()
