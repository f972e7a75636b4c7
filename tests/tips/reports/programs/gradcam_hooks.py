"""After a report on Grad-CAM: hooks append activations and gradients of each image."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(),
    nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 1000),
).cuda()  # fmt: skip


class ActivationsAndGradients:
    def __init__(self, layer):
        self.activations, self.gradients = [], []
        layer.register_forward_hook(self.save_activation)

    def save_activation(self, module, inputs, output):
        self.activations.append(output.detach().cpu() if CURED else output.detach())
        output.register_hook(self.save_gradient)

    def save_gradient(self, grad):
        self.gradients.append(grad.cpu() if CURED else grad)


saved = ActivationsAndGradients(model[2])
for _ in range(12):
    image = torch.randn(1, 3, 448, 448, device="cuda")
    model(image)[0, 281].backward()
    model.zero_grad()
# CURE
