"""Stacked weights of several models are called with vmap."""

import torch
from torch import nn
from torch.func import functional_call, stack_module_state

models = [nn.Linear(1024, 1024).cuda() for _ in range(6)]
parameters, buffers = stack_module_state(models)
skeleton = nn.Linear(1024, 1024, device="meta")
del models


def call(weights, kept, x):
    return functional_call(skeleton, (weights, kept), (x,))


with torch.no_grad():
    for _ in range(3):
        x = torch.randn(1024, 1024, device="cuda")
        torch.vmap(call, in_dims=(0, 0, None))(parameters, buffers, x).std(0).mean().item()
