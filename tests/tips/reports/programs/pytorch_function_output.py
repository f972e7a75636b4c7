"""After a report on a function whose backward never runs: it keeps what it returns."""

import torch

CURED = False


class CopyFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx, features, weight):
        copied = features.clone()
        if CURED:
            ctx.save_for_backward(copied)
        else:
            ctx.output_features = copied
        return copied

    @staticmethod
    def backward(ctx, grad):
        return grad, None


weight = torch.nn.Parameter(torch.randn(100, 100, device="cuda"))
for _ in range(30):
    features = torch.rand(4096, 4096, device="cuda")
    output = CopyFeatures.apply(features, weight)
    print(tuple(output.shape), output.dtype)
# CURE
