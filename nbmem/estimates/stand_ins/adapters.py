"""LoRA layers that hold and make the tensors of peft's.

https://github.com/huggingface/peft/blob/v0.19.1/src/peft/tuners/lora/layer.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from nbmem.estimates.stand_ins.four_bit.nn import Linear4bit, Params4bit


@dataclass(kw_only=True)
class LoraConfig:
    """The options of peft's LoraConfig that an estimate's program writes."""

    r: int
    lora_alpha: int
    target_modules: str | list[str]
    task_type: str


class LoraLayer(nn.Module):
    """A layer with an adapter beside it."""

    def __init__(self, base_layer: nn.Module, config: LoraConfig) -> None:
        super().__init__()
        self.base_layer = base_layer
        weight: Any = base_layer.weight
        if isinstance(base_layer, Linear4bit):
            columns, rows = base_layer.in_features, base_layer.out_features
        else:
            rows, columns = weight.shape[:: 1 if isinstance(base_layer, nn.Linear) else -1]
        self._four_bit = isinstance(base_layer, Linear4bit)
        self._scaling = config.lora_alpha / config.r
        made = {"bias": False, "device": weight.device, "dtype": torch.float32}
        self.lora_A = nn.ModuleDict({"default": nn.Linear(columns, config.r, **made)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(config.r, rows, **made)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the adapter's output to the layer's, as peft does."""
        result = self.base_layer(x)
        dtype = result.dtype
        down, up = self.lora_A["default"], self.lora_B["default"]
        if self._four_bit:
            result = result.clone()
            casts = not torch.is_autocast_enabled("cuda")
            output = up(down(x.to(down.weight.dtype) if casts else x)) * self._scaling
            return result + (output.to(dtype) if casts else output)
        x = x.to(down.weight.dtype)
        result = result + up(down(x)) * self._scaling
        return result.to(dtype)


class PeftModel(nn.Module):
    """A model with adapters, with the names that its weights have under peft."""

    def __init__(self, model: nn.Module, config: LoraConfig) -> None:
        super().__init__()
        for parameter in model.parameters():
            parameter.requires_grad = False
        for name, layer in _targets(model, config.target_modules):
            model.set_submodule(name, LoraLayer(layer, config))
        self.base_model = nn.ModuleDict({"model": model})
        self.config = model.config

    def forward(self, **given: Any) -> Any:
        """Call the model."""
        return self.base_model["model"](**given)


def _targets(model: Any, wanted: str | list[str]) -> list[tuple[str, nn.Module]]:
    """Return the layers to adapt: all linear ones, or those of some names."""
    last = model.get_output_embeddings()
    found = []
    for name, layer in model.named_modules():
        if not isinstance(layer, (nn.Linear, Conv1D, Linear4bit)) or layer is last:
            continue
        if wanted == "all-linear" or name.rpartition(".")[2] in wanted:
            found.append((name, layer))
    if not found:
        raise ValueError(f"Target modules {wanted} not found in the base model.")
    return found


def get_peft_model(model: nn.Module, config: LoraConfig) -> PeftModel:
    """Add adapters to a model."""
    return PeftModel(model, config)


def prepare_model_for_kbit_training(model: Any, *, use_gradient_checkpointing: bool = True) -> Any:
    """Freeze a model, and cast its weights that are not quantized to float32."""
    for parameter in model.parameters():
        parameter.requires_grad = False
        half = parameter.dtype in {torch.float16, torch.bfloat16}
        if half and not isinstance(parameter, Params4bit):
            parameter.data = parameter.data.to(torch.float32)
    torch.cuda.empty_cache()
    if use_gradient_checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable()
    return model
