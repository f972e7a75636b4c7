"""After tangermeme #84.

Attributions leave each layer's input and output on the module.
"""

import torch
from torch import nn

CURED = False


def keep(module, inputs, output):
    module.input, module.output = inputs[0].detach(), output.detach()


def attribute(model, sequences):
    handles = [m.register_forward_hook(keep) for m in model if isinstance(m, nn.ReLU)]
    sequences.requires_grad_(True)
    model(sequences).square().mean().backward()
    scores = sequences.grad.cpu()
    for handle in handles:
        handle.remove()
    if CURED:
        for module in model:
            module.__dict__.pop("input", None)
            module.__dict__.pop("output", None)
    return scores


models = [
    nn.Sequential(nn.Conv1d(4, 128, 19, padding=9), nn.ReLU(), nn.Conv1d(128, 1, 1)).cuda()
    for _ in range(6)
]
for model in models:
    model.requires_grad_(False)
    attribute(model, torch.randn(64, 4, 2114, device="cuda"))
# CURE
