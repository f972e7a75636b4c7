"""Fakes of the DeepSpeed 0.19.8 objects that nbmem reads."""

import sys
from types import ModuleType

import torch

MODULE = "deepspeed.runtime.zero.stage_1_and_2"


def imported(monkeypatch):
    """Put fakes in the place of `import deepspeed`."""
    for name in ("deepspeed", MODULE):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[MODULE].DeepSpeedZeroOptimizer = DeepSpeedZeroOptimizer


class Kept:
    """An object with these attributes."""

    def __init__(self, **kept):
        self.__dict__.update(kept)


class DeepSpeedZeroOptimizer:
    """Fake optimizer that sends gradients from one bucket, as stages 1 and 2."""

    def __init__(self, elements=0):
        self.reduce_bucket_size = elements
        self.ipg_buckets = {torch.float32: Kept(buffer=[])}

    def average_tensor(self, tensor):
        return tensor


class Engine(torch.nn.Module):
    """Fake of the engine that `deepspeed.initialize` returns."""

    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.optimizer = module, optimizer

    def forward(self, x):
        for parameter in self.parameters():
            if not parameter.numel():
                parameter.data = torch.empty(parameter.ds_shape, device="cuda")
        return self.module(x)
