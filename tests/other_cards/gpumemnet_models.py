"""The networks of GPUMemNet's jobs, rebuilt from their arguments.

The arguments are in the name of a job's log. Source: https://github.com/itu-rad/GPUMemNet and
https://arxiv.org/abs/2602.17817.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import torch
from torch import nn

WIDEST = 2048
"""Channels up to which a convolutional network grows."""
SMALLEST_SIDE = 7
"""Side of an image below which a residual network has no more blocks."""
GROWTH, CONVOLUTIONS = 32, 4
"""Channels that each convolution of a dense block adds, and their number in a block."""
ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "swish": nn.SiLU,
    "mish": nn.Mish,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}
_KEY = re.compile(
    r"(?:^|_)(input_channels|input_size|num_classes|base_filters|batchnorm|dropout|input|output"
    r"|depth|arch|batch|act):"
)


def arguments_of(name: str) -> dict[str, Any]:
    """Read the arguments in the name of a log; `dropout` is 0 where it is switched off."""
    parts = _KEY.split(name.removesuffix(".out"))[1:]
    found: dict[str, Any] = {"act": "relu", "dropout": 0.0, "batchnorm": False}
    for key, text in zip(parts[::2], parts[1::2], strict=True):
        if text in {"True", "False"}:  # behind the rate stands whether there is any dropout
            on = text == "True"
            found[key] = on if key == "batchnorm" else found[key] if on else 0.0
        else:
            found[key] = (
                text if key in {"arch", "act"} else float(text) if "." in text else int(text)
            )
    return found


def build(kind: str, a: dict[str, Any], parameters: int | None) -> nn.Module:
    """Build a job's network on the device "meta".

    Args:
        kind: `mlp1`, `mlp2` or `cnn`.
        a: Its arguments.
        parameters: What its log counts, which tells two forms of a dense network apart; None if it
            does not say.
    """
    with torch.device("meta"):
        if kind != "cnn":
            return Perceptron(a, flat=kind == "mlp2")
        forms = [ConvNet(a, halves_often=often) for often in (True, False)]
        return next((form for form in forms if parameters_of(form) == parameters), forms[-1])


def parameters_of(model: nn.Module) -> int:
    """Count parameters as the logs do, which omit those of PReLU."""
    modules = (one for one in model.modules() if not isinstance(one, nn.PReLU))
    return sum(p.numel() for module in modules for p in module.parameters(recurse=False))


class Perceptron(nn.Module):
    """Layers of equal or falling width.

    Args:
        a: The arguments.
        flat: Whether it flattens its input and ends in a softmax.
    """

    def __init__(self, a: dict[str, Any], *, flat: bool) -> None:
        super().__init__()
        self.flat = flat
        widths = _widths(a)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers.append(nn.Linear(before, after))
            if a["batchnorm"]:
                layers.append(nn.BatchNorm1d(after))
            layers.append(ACTIVATIONS[a["act"]]())
            if a["dropout"]:
                layers.append(nn.Dropout(a["dropout"]))
        layers.append(nn.Linear(widths[-1], a["output"]))
        if flat:
            layers.append(nn.Softmax(dim=1))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.flatten(1) if self.flat else x)


def _widths(a: dict[str, Any]) -> list[int]:
    widths = [a["input"]]
    slope = (a["input"] - a["output"]) // a["depth"]
    for _ in range(a["depth"] + (a["arch"] == "bottleneck")):
        last = widths[-1]
        following = {"uniform": last, "pyramid": last // 2, "bottleneck": last // 2}
        least = 0 if a["arch"] == "uniform" else a["output"]
        widths.append(max(following.get(a["arch"], last - slope), least))
    return widths


class Convolution(nn.Sequential):
    """A convolution with what belongs to it."""

    def __init__(  # noqa: PLR0913 - what a convolution is made of
        self, into: int, out: int, a: dict[str, Any], *, side: int = 3, stride: int = 1,
        act: str | None = None,
    ) -> None:  # fmt: skip
        layers: list[nn.Module] = [nn.Conv2d(into, out, side, stride, side // 2)]
        if a["batchnorm"]:
            layers.append(nn.BatchNorm2d(out))
        layers.append(ACTIVATIONS[act or a["act"]]())
        if a["dropout"] and act is None:
            layers.append(nn.Dropout(a["dropout"]))
        super().__init__(*layers)


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, into: int, out: int, stride: int, a: dict[str, Any]) -> None:
        super().__init__()
        self.first = Convolution(into, out, a, stride=stride)
        self.second = Convolution(out, out, a)
        norm = nn.BatchNorm2d(out) if a["batchnorm"] else nn.Identity()
        same = into == out and stride == 1
        self.around = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(into, out, 1, stride), norm)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around = self.around(x)
        x = self.first(x)
        x = self.second(x)
        return x + around


class Dense(nn.Module):
    """Convolutions of which each takes what all before it returned."""

    def __init__(self, into: int, a: dict[str, Any]) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            Convolution(into + GROWTH * k, GROWTH, a) for k in range(CONVOLUTIONS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [x]
        for convolution in self.convolutions:
            made = convolution(torch.cat(found, 1))
            found.append(made)
        return torch.cat(found, 1)


class Halving(nn.Module):
    """Half as many channels and a quarter of the pixels, behind a dense block."""

    def __init__(self, into: int, a: dict[str, Any]) -> None:
        super().__init__()
        self.convolution = Convolution(into, into // 2, a, side=1, act="relu")
        self.pool = nn.AvgPool2d(2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        return self.pool(x) if min(x.shape[2:]) > 1 else x


class ConvNet(nn.Module):
    """A convolutional network of one of their seven forms."""

    def __init__(self, a: dict[str, Any], *, halves_often: bool) -> None:
        super().__init__()
        blocks, out = {"residual": _residual, "dense": _dense}.get(a["arch"], _plain)(
            a, halves_often
        )
        self.blocks = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.head = nn.Linear(out, a["num_classes"])
        self.last = nn.Softmax(dim=1) if a["num_classes"] > 1 else nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        x = self.pool(x)
        x = torch.flatten(x, 1)
        x = self.head(x)
        return self.last(x)


def _residual(a: dict[str, Any], _often: bool) -> tuple[list[nn.Module], int]:  # noqa: FBT001
    blocks: list[nn.Module] = []
    into, side = a["input_channels"], a["input_size"]
    for k in range(a["depth"] // 2):
        out = _grown(a, k, a["depth"])
        stride = 2 if k % 2 == 1 and side > SMALLEST_SIDE else 1
        blocks.append(Residual(into, out, stride, a))
        into, side = out, side // stride
        if side <= SMALLEST_SIDE:
            break
    return blocks, into


def _dense(a: dict[str, Any], often: bool) -> tuple[list[nn.Module], int]:  # noqa: FBT001
    blocks: list[nn.Module] = []
    into, count = a["input_channels"], a["depth"] // CONVOLUTIONS
    halvings = max(1, int(math.log2(a["input_size"] // SMALLEST_SIDE)))
    every = max(1, math.ceil(a["depth"] / halvings)) if often else 5
    for k in range(count):
        blocks.append(Dense(into, a))
        into += GROWTH * CONVOLUTIONS
        if k % every == 0 and k != count - 1:
            blocks.append(Halving(into, a))
            into //= 2
    return blocks, into


def _plain(a: dict[str, Any], _often: bool) -> tuple[list[nn.Module], int]:  # noqa: FBT001
    blocks: list[nn.Module] = []
    into = a["input_channels"]
    for k in range(a["depth"]):
        out = _channels(a, k)
        blocks.append(Convolution(into, out, a))
        into = out
    return blocks, into


def _channels(a: dict[str, Any], k: int) -> int:
    """Return the channels of a plain network's layer."""
    base, depth, half = a["base_filters"], a["depth"], a["depth"] // 2
    match a["arch"]:
        case "pyramid":
            return _grown(a, k, depth)
        case "gradual":
            return _grown(a, k, 2 * depth)
        case "bottleneck":
            growth = 2 if depth <= 2 else (WIDEST / base) ** (1 / (depth - 1))
            return base * 2 if k == 0 else min(int(base * growth ** (k - 1)), WIDEST)
        case "hourglass" if k < half:
            return _grown(a, k, half)
        case "hourglass":
            growth = (WIDEST / base) ** (1 / (depth - half))
            return max(int(base * growth ** (depth - k - 1)), base)
    return base


def _grown(a: dict[str, Any], k: int, steps: int) -> int:
    """Return the channels after `k` of the steps from the first width to the widest."""
    base = a["base_filters"]
    return min(int(base * ((WIDEST / base) ** (1 / steps)) ** k), WIDEST)
