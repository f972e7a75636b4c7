"""After pytorch-grad-cam #71.

Hooks for heat maps append each picture's activations and gradients.
"""

import torch
from torch import nn

CURED = False


class ActivationsAndGradients:
    def __init__(self, layer):
        self.activations, self.gradients = [], []
        layer.register_forward_hook(self.save_activation)
        layer.register_full_backward_hook(self.save_gradient)

    def save_activation(self, module, inputs, output):
        self.activations.append(output.detach())

    def save_gradient(self, module, grad_input, grad_output):
        self.gradients.append(grad_output[0].detach())

    def heat_map(self, model, image):
        if CURED:
            self.activations, self.gradients = [], []
        model.zero_grad()
        model(image)[:, 0].sum().backward()
        weights = self.gradients[-1].mean((2, 3), keepdim=True)
        return (weights * self.activations[-1]).sum(1).relu().cpu()


cnn = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
).cuda()
cam = ActivationsAndGradients(cnn[0])
maps = []
for _ in range(10):
    maps.append(cam.heat_map(cnn, torch.randn(4, 3, 224, 224, device="cuda")))
# CURE
