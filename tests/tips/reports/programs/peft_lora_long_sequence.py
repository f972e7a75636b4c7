"""After peft #1514.

LoRA trains a hundredth of the weights and still runs out of memory.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CURED = False


class Block(nn.Module):
    def __init__(self, width, rank=8):
        super().__init__()
        self.up = nn.Linear(width, 4 * width).requires_grad_(False)
        self.down = nn.Linear(4 * width, width).requires_grad_(False)
        self.lora_a = nn.Linear(width, rank, bias=False)
        self.lora_b = nn.Linear(rank, 4 * width, bias=False)

    def forward(self, x):
        hidden = self.up(x) + self.lora_b(self.lora_a(x))
        return x + self.down(nn.functional.gelu(hidden))


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(1024) for _ in range(22))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if CURED else block(x)
        return x


llama = Tiny().cuda()
optimizer = torch.optim.AdamW([p for p in llama.parameters() if p.requires_grad], lr=1e-4)
# CURE
for _ in range(2):
    loss = llama(torch.randn(2, 24576, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
