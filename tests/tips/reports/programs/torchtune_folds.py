"""After meta-pytorch/torchtune#904: cross validation of a LoRA fine-tune, a fresh model for each fold."""

import functools
import gc

import torch
from torch import nn

CURED = False
cached = (lambda fn: fn) if CURED else functools.lru_cache()


class LoRALinear(nn.Module):
    def __init__(self, dim, rank=8):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim), requires_grad=False)
        self.lora_a, self.lora_b = (
            nn.Linear(dim, rank, bias=False),
            nn.Linear(rank, dim, bias=False),
        )

    def adapter_params(self):
        return ["lora_a.weight", "lora_b.weight"]

    def forward(self, x):
        return x + torch.relu(x @ self.weight.T + self.lora_b(self.lora_a(x)))


@cached
def get_adapter_params(model):
    params = {}
    for prefix, module in model.named_modules():
        if callable(getattr(module, "adapter_params", None)):
            params.update(
                {
                    f"{prefix}.{n}": p
                    for n, p in module.named_parameters()
                    if n in module.adapter_params()
                }
            )
    return params


def run_fold(fold):
    model = nn.Sequential(*[LoRALinear(4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.AdamW(get_adapter_params(model).values(), lr=3e-4)
    for step in range(3):
        loss = model(torch.randn(256, 4096, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


scores = []
for fold in range(4):
    scores.append(run_fold(fold))
    gc.collect()
    torch.cuda.empty_cache()
print(scores)
