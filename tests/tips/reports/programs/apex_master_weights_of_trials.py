"""After apex #439.

A global state keeps the float32 master weights of every trial's model.
"""

import torch
from torch import nn

CURED = False


class AmpState:
    masters = []


def initialize(model):
    if CURED:
        AmpState.masters.clear()
    masters = [p.detach().clone().float() for p in model.parameters()]
    AmpState.masters.append(masters)
    model.half()
    return masters


def run_trial(rate):
    model = nn.Sequential(*[nn.Linear(1280, 1280) for _ in range(16)]).cuda()
    masters = initialize(model)
    for _ in range(3):
        loss = model(torch.randn(128, 1280, device="cuda").half()).float().square().mean()
        loss.backward()
        with torch.no_grad():
            for master, weight in zip(masters, model.parameters()):
                master -= rate * weight.grad.float()
                weight.copy_(master)
                weight.grad = None
    return loss.item()


results = [run_trial(rate) for rate in (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)]
# CURE
