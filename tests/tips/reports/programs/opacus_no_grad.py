"""After a report on Opacus: evaluation under no_grad, with hooks that save for a backward."""

import torch
from torch import nn

CURED = False


def save_activations(module, inputs, output):
    if module.training:
        module.saved = [*getattr(module, "saved", []), inputs[0].detach()]


model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))).cuda()
for layer in model:
    layer.register_forward_hook(save_activations)
if CURED:
    model.eval()
with torch.no_grad():
    for _ in range(15):
        x = torch.randn(2048, 1024, device="cuda")
        accuracy = model(x).argmax(-1).float().mean().item()
# CURE
