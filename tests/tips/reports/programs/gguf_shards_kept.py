"""After vllm-project/vllm-gguf-plugin#109: a quantized model takes 5 GiB more than its file has."""

from collections import namedtuple

import torch
from torch import nn

CURED = False
HIDDEN, INTERMEDIATE, LAYERS, BLOCK, TYPE_SIZE = 2048, 8192, 24, 32, 34
Shard = namedtuple("Shard", ["offset", "rows"])


def gguf_weight_parameter(data, **attributes):
    param = nn.Parameter(data, requires_grad=False)
    for name, value in attributes.items():
        setattr(param, name, value)
    return param


def gguf_uninitialized_weight_parameter():
    """Make a parameter that collects the shards of a fused weight as the file gives them."""
    data = torch.empty(0, dtype=torch.uint8, device="cuda")
    return gguf_weight_parameter(data, data_container=[], shard_id=[], shard_id_map={})


def gguf_weight_loader(param, loaded_weight, shard_id):
    param.shard_id_map[shard_id] = len(param.data_container)
    param.shard_id.append(shard_id)
    param.data_container.append(loaded_weight.to("cuda"))


class GGUFLinear(nn.Module):
    def __init__(self, input_size, output_sizes):
        super().__init__()
        self.input_size, self.output_sizes = input_size, output_sizes
        self.qweight = gguf_uninitialized_weight_parameter()

    def _materialize_gguf_weight_parameter(self):
        raw_param = self.qweight
        qweight = gguf_weight_parameter(raw_param.data)
        qweight.data_container = list(raw_param.data_container)
        qweight.shard_id = list(raw_param.shard_id)
        qweight.shard_id_map = dict(raw_param.shard_id_map)
        if CURED:
            raw_param.data_container.clear()
        self.qweight = qweight

    def _create_padded_weight_param(self):
        qweight = self.qweight
        columns = max(shard.shape[1] for shard in qweight.data_container)
        rows = sum(len(shard) for shard in qweight.data_container)
        padded = torch.zeros(rows, columns, dtype=torch.uint8, device="cuda")
        self.shard_offset_map, start = {}, 0
        for shard_id in qweight.shard_id:
            shard = qweight.data_container[qweight.shard_id_map[shard_id]]
            padded[start : start + len(shard), : shard.shape[1]] = shard
            self.shard_offset_map[shard_id] = Shard(start, len(shard))
            start += len(shard)
        qweight.data_container.clear()
        self.qweight = gguf_weight_parameter(padded)

    def process_weights_after_loading(self):
        self._materialize_gguf_weight_parameter()
        if len(self.output_sizes) > 1:
            self._create_padded_weight_param()
        else:
            self.qweight = gguf_weight_parameter(self.qweight.data_container.pop())

    def forward(self, x):
        blocks = self.qweight.view(-1, self.input_size // BLOCK, TYPE_SIZE)
        scales = blocks[..., :2].contiguous().view(torch.float16)
        weight = (blocks[..., 2:].half() - 128) * scales
        return x @ weight.flatten(1).T


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv_proj = GGUFLinear(HIDDEN, (HIDDEN, 512, 512))
        self.o_proj = GGUFLinear(HIDDEN, (HIDDEN,))
        self.gate_up_proj = GGUFLinear(HIDDEN, (INTERMEDIATE, INTERMEDIATE))
        self.down_proj = GGUFLinear(INTERMEDIATE, (HIDDEN,))

    def forward(self, x):
        q, k, v = self.qkv_proj(x).split([HIDDEN, 512, 512], dim=-1)
        k, v = k.repeat(1, HIDDEN // 512), v.repeat(1, HIDDEN // 512)
        x = x + self.o_proj(torch.softmax(q @ k.T, dim=-1) @ v)
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return x + self.down_proj(nn.functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(32000, HIDDEN, device="cuda", dtype=torch.float16)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed_tokens.weight.T


class GGUFModelLoader:
    def weights_iterator(self, model):
        for name, module in model.named_modules():
            for shard_id, rows in enumerate(getattr(module, "output_sizes", ())):
                columns = module.input_size // BLOCK * TYPE_SIZE
                yield f"{name}.qweight", shard_id, torch.zeros(rows, columns, dtype=torch.uint8)

    def load_model(self):
        model = Model()
        self.params_dict = dict(model.named_parameters())
        for name, shard_id, loaded_weight in self.weights_iterator(model):
            gguf_weight_loader(self.params_dict[name], loaded_weight, shard_id)
        for module in model.modules():
            if isinstance(module, GGUFLinear):
                module.process_weights_after_loading()
        return model


class GPUModelRunner:
    def __init__(self):
        self.model_loader = GGUFModelLoader()
        self.model = self.model_loader.load_model()

    @torch.inference_mode()
    def execute_model(self, input_ids):
        return self.model(input_ids)[-1].argmax()


runner = GPUModelRunner()
# CURE
tokens = [runner.execute_model(torch.randint(0, 32000, (64,), device="cuda")) for _ in range(3)]
print(len(tokens))
