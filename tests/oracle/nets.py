"""Networks to train compiled: vision, language and more."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

WORDS, LENGTH = 8192, 512


class Bottleneck(nn.Module):
    """Of a ResNet; with groups, of a ResNeXt."""

    def __init__(self, wide: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        inner = wide // 2
        self.a = nn.Sequential(
            nn.Conv2d(wide // stride, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
        )
        self.b = nn.Sequential(
            nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
        )
        self.c = nn.Sequential(nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide))
        self.down = (
            nn.Sequential(nn.Conv2d(wide // 2, wide, 1, 2, bias=False), nn.BatchNorm2d(wide))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.c(self.b(self.a(x))) + self.down(x))


def resnet(groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Bottleneck(128, 2, groups),
        Bottleneck(128, 1, groups),
        Bottleneck(256, 2, groups),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


class Inverted(nn.Module):
    """A block of MobileNetV3: depthwise, squeeze and excitation, hard swish."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        inner = wide * 4
        self.grow = nn.Sequential(
            nn.Conv2d(wide, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish()
        )
        self.deep = nn.Sequential(
            nn.Conv2d(inner, inner, 5, 1, 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.Hardswish(),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inner, inner // 4, 1),
            nn.ReLU(),
            nn.Conv2d(inner // 4, inner, 1),
            nn.Hardsigmoid(),
        )
        self.shrink = nn.Sequential(nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.deep(self.grow(x))
        return x + self.shrink(y * self.squeeze(y))


class ConvNeXt(nn.Module):
    """Its block: channels last in between, scale, drop path."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(wide, wide, 7, 1, 3, groups=wide)
        self.norm = nn.LayerNorm(wide)
        self.wide, self.narrow = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)
        self.scale = nn.Parameter(torch.full((wide,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(nn.functional.gelu(self.wide(y)))
        keep = torch.rand(x.size(0), 1, 1, 1, device=x.device) < 0.9
        return x + y.permute(0, 3, 1, 2) * keep


class Attention(nn.Module):
    """Multi-head attention by torch's fused one."""

    def __init__(self, wide: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    """Of a transformer, with dropout."""

    def __init__(self, wide: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.attend = Attention(wide, heads, causal=causal)
        self.mlp = nn.Sequential(
            nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.one(x))
        return x + self.mlp(self.two(x))


class ViT(nn.Module):
    def __init__(self, wide: int = 384) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, wide, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, wide))
        self.place = nn.Parameter(torch.zeros(1, 197, wide))
        self.blocks = nn.Sequential(Block(wide, 6), Block(wide, 6))
        self.head = nn.Linear(wide, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], 1) + self.place
        return self.head(self.blocks(x)[:, 0])


class Words(nn.Module):
    """A causal language model; its blocks may be checkpointed, and a graph may break in it."""

    def __init__(self, wide: int = 512, *, saves: bool = False, breaks: bool = False) -> None:
        super().__init__()
        self.saves, self.breaks = saves, breaks
        self.embed, self.place = nn.Embedding(WORDS, wide), nn.Embedding(LENGTH, wide)
        self.blocks = nn.ModuleList(Block(wide, 8, causal=True) for _ in range(3))
        self.head = nn.Linear(wide, WORDS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.saves else block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        logits = self.head(x)
        return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
