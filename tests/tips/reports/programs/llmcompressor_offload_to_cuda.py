"""After vllm-project/llm-compressor#2387: AWQ keeps the activations of every calibrated layer."""

from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CURED = False
HIDDEN, HEADS, LAYERS, VOCAB = 1024, 16, 10, 32000
BATCHES, BATCH_SIZE, SEQUENCE = 12, 8, 512


class OverrideEqMode(TorchFunctionMode):
    """Tensors as dictionary keys are the same only if they are the same object"""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__eq__:
            return args[0] is args[1]
        return func(*args, **(kwargs or {}))


class IntermediatesCache:
    """Activations of all batches between two layers; shared tensors are offloaded once"""

    offload_values = WeakKeyDictionary()

    def __init__(self, batches, offload_device):
        self.offload_device = offload_device
        self.batch_intermediates = [{} for _ in range(batches)]

    def fetch(self, index, device="cuda"):
        return {name: v.to(device) for name, v in self.batch_intermediates[index].items()}

    def update(self, index, values):
        for name, value in values.items():
            self.batch_intermediates[index][name] = self._offload_value(value)

    def delete(self, index, names):
        for name in names:
            del self.batch_intermediates[index][name]

    def _offload_value(self, value):
        with OverrideEqMode():
            if value in self.offload_values:
                return self.offload_values[value]
            offloaded = value.to(device=self.offload_device)
            if not CURED or offloaded is not value:
                self.offload_values[value] = offloaded
        return offloaded


class LlamaDecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(HIDDEN)
        self.qkv_proj = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.post_attention_layernorm = nn.LayerNorm(HIDDEN)
        self.up_proj = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down_proj = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, hidden_states):
        qkv = self.qkv_proj(self.input_layernorm(hidden_states))
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden_states = hidden_states + self.o_proj(attended.transpose(1, 2).flatten(2))
        residual, hidden_states = hidden_states, self.post_attention_layernorm(hidden_states)
        return residual + self.down_proj(F.silu(self.up_proj(hidden_states)))


class AWQModifier:
    """Collects the mean input of each linear layer, and moves its scale into the norm before"""

    def __init__(self):
        self._smooth_activation_means = {}

    def start(self, layer):
        means = self._smooth_activation_means

        def collect(module, args):
            mean = args[0].abs().flatten(0, -2).mean(0)
            means[module] = means.get(module, 0) + mean / BATCHES

        return [m.register_forward_pre_hook(collect) for m in (layer.qkv_proj, layer.up_proj)]

    def apply_smoothing(self, layer, handles):
        norms = layer.input_layernorm, layer.post_attention_layernorm
        for norm, balance_layer in zip(norms, (layer.qkv_proj, layer.up_proj)):
            scales = self._smooth_activation_means.pop(balance_layer).clamp(min=1e-4).sqrt()
            balance_layer.weight.mul_(scales)
            norm.weight.div_(scales)
        for handle in handles:
            handle.remove()


class SequentialPipeline:
    def __init__(self, model, offload_device):
        self.model, self.offload_device = model, offload_device

    def __call__(self, dataloader, modifier):
        activations = IntermediatesCache(BATCHES, self.offload_device)
        for index, input_ids in enumerate(dataloader):
            embedded = self.model["embed_tokens"](input_ids.cuda())
            activations.update(index, {"hidden_states": embedded})
        del embedded
        for layer in self.model["layers"]:
            self.calibrate(layer, activations, modifier)

    def calibrate(self, layer, activations, modifier):
        handles = modifier.start(layer)
        for index in range(BATCHES):
            layer(**activations.fetch(index))
        modifier.apply_smoothing(layer, handles)
        # the inputs of the next layer come from the smoothed layer
        for index in range(BATCHES):
            output = layer(**activations.fetch(index))
            activations.delete(index, ["hidden_states"])
            activations.update(index, {"hidden_states": output})


def oneshot(sequential_offload_device="cpu"):
    model = nn.ModuleDict({"embed_tokens": nn.Embedding(VOCAB, HIDDEN)})
    model["layers"] = nn.ModuleList(LlamaDecoderLayer() for _ in range(LAYERS))
    model.to("cuda", torch.float16)
    dataset = [torch.randint(0, VOCAB, (BATCH_SIZE, SEQUENCE)) for _ in range(BATCHES)]
    with torch.no_grad():
        SequentialPipeline(model, sequential_offload_device)(dataset, AWQModifier())
    return model


quantized = oneshot(sequential_offload_device="cuda")
print(sum(p.numel() for p in quantized.parameters()))
