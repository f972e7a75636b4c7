"""Networks to train compiled: diffusion and recommendation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, layer_norm

from tests.oracle.nets import Attention


class Residual(nn.Module):
    """A block of a diffusion UNet: group norm, SiLU, the time."""

    def __init__(self, given: int, wide: int) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.GroupNorm(8, given), nn.SiLU(), nn.Conv2d(given, wide, 3, 1, 1))
        self.time = nn.Linear(128, wide)
        self.b = nn.Sequential(
            nn.GroupNorm(8, wide), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(wide, wide, 3, 1, 1)
        )
        self.skip = nn.Conv2d(given, wide, 1) if given != wide else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.b(self.a(x) + self.time(time)[:, :, None, None])
        return self.skip(x) + y


class UNet(nn.Module):
    def __init__(self, wide: int = 64) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.first = nn.Conv2d(3, wide, 3, 1, 1)
        self.down1, self.down2 = Residual(wide, wide), Residual(wide, 2 * wide)
        self.shrink = nn.Conv2d(wide, wide, 3, 2, 1)
        self.norm, self.attend = nn.GroupNorm(8, 2 * wide), Attention(2 * wide, 4)
        self.up1, self.up2 = Residual(3 * wide, wide), Residual(2 * wide, wide)
        self.last = nn.Conv2d(wide, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor, when: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-torch.arange(32, device=x.device) / 8)
        angles = when[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        a = self.first(x)
        b = self.down1(a, time)
        c = self.shrink(b)
        d = self.down2(c, time)
        n, wide, high, broad = d.shape
        tokens = self.norm(d).flatten(2).transpose(1, 2)
        d = d + self.attend(tokens).transpose(1, 2).reshape(n, wide, high, broad)
        e = self.up1(torch.cat([d, c], 1), time)
        e = nn.functional.interpolate(e, scale_factor=2.0, mode="nearest")
        return self.last(self.up2(torch.cat([e, b], 1), time))


class DiT(nn.Module):
    """A transformer of diffusion: norms that the time shifts and scales."""

    def __init__(self, wide: int = 384) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, wide, 2, 2)
        self.time = nn.Sequential(nn.Linear(1, wide), nn.SiLU(), nn.Linear(wide, wide))
        self.kinds = nn.Embedding(10, wide)
        self.attends = nn.ModuleList(Attention(wide, 6) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU("tanh"), nn.Linear(4 * wide, wide))
            for _ in range(2)
        )
        self.shifts = nn.ModuleList(nn.Linear(wide, 6 * wide) for _ in range(2))
        self.last = nn.Linear(wide, 16)

    def forward(self, x: torch.Tensor, when: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        told = nn.functional.silu(self.time(when[:, None]) + self.kinds(kind))
        for attend, mlp, shift in zip(self.attends, self.mlps, self.shifts, strict=True):
            a, b, c, d, e, f = shift(told)[:, None].chunk(6, -1)
            x = x + c * attend(layer_norm(x, x.shape[-1:]) * (1 + b) + a)
            x = x + f * mlp(layer_norm(x, x.shape[-1:]) * (1 + e) + d)
        return self.last(x)


class DLRM(nn.Module):
    """Bags of embeddings, their products, two MLPs."""

    def __init__(self, tables: int = 8, wide: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(50_000, wide, mode="sum") for _ in range(tables)
        )
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, wide), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + wide, 1024), nn.ReLU(), nn.Linear(1024, 1))
        self.register_buffer("at", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        found = [table(bags[:, i]) for i, table in enumerate(self.tables)]
        all_of = torch.stack([x, *found], 1)
        pairs = torch.bmm(all_of, all_of.transpose(1, 2))[:, self.at[0], self.at[1]]
        return self.top(torch.cat([x, pairs], 1)).squeeze(1)


class Cross(nn.Module):
    """DCN-v2: crossed layers beside deep ones."""

    def __init__(self, fields: int = 16, wide: int = 32) -> None:
        super().__init__()
        size = fields * wide
        self.table = nn.Embedding(100_000, wide)
        self.cross = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(size, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Dropout(0.2)
        )
        self.last = nn.Linear(1024 + size, 1)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        first = x = self.table(fields).flatten(1)
        for layer in self.cross:
            x = first * layer(x) + x
        return self.last(torch.cat([x, self.deep(first)], 1)).squeeze(1)


class Towers(nn.Module):
    """Two towers with each other's batch as negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(100_000, 128), nn.Embedding(100_000, 128)
        self.a, self.b = (
            nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in "ab"
        )

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        a = nn.functional.normalize(self.a(self.users(users)), dim=-1)
        b = nn.functional.normalize(self.b(self.items(items)), dim=-1)
        return cross_entropy(a @ b.t() / 0.07, torch.arange(a.size(0), device=a.device))
