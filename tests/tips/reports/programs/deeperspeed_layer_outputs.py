"""After DeeperSpeed #34: a hook of each layer keeps its outputs, which lie on the card."""

import torch
from torch import nn

CURED = False


class Engine:
    def __init__(self, module, layers):
        self.module = module
        self.hooked_outputs = {number: [] for number in layers}
        for number in layers:
            module[number].register_forward_hook(self.hook_of(number))

    def hook_of(self, number):
        def hook(module, inputs, output):
            kept = output.detach()
            self.hooked_outputs[number].append(kept.cpu() if CURED else kept)

        return hook

    @torch.no_grad()
    def eval_batch(self, batch):
        return self.module(batch).mean().item()


engine = Engine(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)]).cuda().eval(), [1, 3, 5])
for _ in range(16):
    engine.eval_batch(torch.randn(4, 512, 1024, device="cuda"))
# CURE
