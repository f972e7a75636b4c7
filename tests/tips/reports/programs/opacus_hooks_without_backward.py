"""After opacus #176.

Hooks keep each layer's input for a backward; evaluation has none.
"""

import torch
from torch import nn

CURED = False


def save_input(layer, inputs, output):
    if CURED and not torch.is_grad_enabled():
        return
    layer.activations.append(inputs[0].detach())


def use_input(layer, grad_input, grad_output):
    layer.activations.pop()


net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()).cuda()
for layer in net:
    if isinstance(layer, nn.Linear):
        layer.activations = []
        layer.register_forward_hook(save_input)
        layer.register_full_backward_hook(use_input)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for _ in range(3):
        net(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for _ in range(5):
            error = net(torch.randn(4096, 1024, device="cuda")).square().mean().item()
# CURE
