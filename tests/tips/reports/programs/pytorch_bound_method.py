"""After a report on a method that is put into an attribute: deleted modules stay."""

import torch
from torch import nn

CURED = False


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kernel", torch.ones(4096, 4096))
        if not CURED:
            self.apply_kernel = self.multiply

    def multiply(self, x):
        return x @ self.kernel

    def forward(self, x):
        return self.multiply(x) if CURED else self.apply_kernel(x)


x = torch.randn(64, 4096, device="cuda")
for _ in range(8):
    module = Filter().cuda()
    module(x)
    del module
    torch.cuda.empty_cache()
# CURE
