"""After pytorch-grad-cam #88.

A network that keeps a hook's gradient, and the hook the network.
"""

import gc

import torch
from torch import nn

CURED = False


class Cam(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 8, 1))
        self.target_grad = None

        def keep_gradient(module, grad_input, grad_output):
            self.target_grad = grad_output[0]

        self.handle = self.net[0].register_full_backward_hook(keep_gradient)

    def forward(self, image):
        return self.net(image)


def explain(image):
    cam = Cam().cuda()
    cam(image).square().mean().backward()
    heat = cam.target_grad.amax(1).cpu()
    if CURED:
        cam.handle.remove()
    return heat


gc.disable()  # in a long run it seldom looks at what is old
heats = [explain(torch.randn(16, 3, 224, 224, device="cuda")) for _ in range(4)]
# CURE
