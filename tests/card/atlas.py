"""Part `atlas`: requests of common operators at common sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.card.allocator_requests import requests_by_moment, warm_up_libraries

if TYPE_CHECKING:
    from tests.card.parts import Case

DTYPES = ("float32", "bfloat16", "float16")
Way = tuple[str, "Callable[..., Any]", tuple[tuple[int, ...], ...]]


def cases() -> Iterator[Case]:
    """Yield products, attention, norms, losses and more in three types."""
    import torch

    warm_up_libraries()
    for dtype in DTYPES:
        for name, call, shapes in [*products(torch), *layers(torch), *elements(torch)]:
            yield (
                f"{name} {dtype}",
                partial(requests_by_moment, partial(tensors, dtype, shapes), call),
            )
    for name, made in OPTIMIZERS.items():
        yield f"{name} step", partial(optimizer, *made)


def tensors(dtype: str, shapes: tuple[tuple[int, ...], ...]) -> list[Any]:
    """Make random tensors that require gradients."""
    import torch

    options: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, dtype)}
    return [torch.randn(*shape, **options).requires_grad_() for shape in shapes]


def products(torch: Any) -> Iterator[Way]:
    """Matrix products and attention."""
    functional = torch.nn.functional
    for rows, inner, columns in ((512, 768, 3072), (8192, 4096, 1024), (33, 100, 10)):
        left, right, bias = (rows, inner), (columns, inner), (columns,)
        yield f"mm {rows}x{inner}x{columns}", torch.mm, (left, (inner, columns))
        yield f"linear {rows}x{inner}x{columns}", functional.linear, (left, right, bias)
    yield "bmm", torch.bmm, ((96, 128, 64), (96, 64, 128))
    yield "baddbmm", torch.baddbmm, ((16, 64, 64),) * 3
    for heads, length, causal in ((64, 512, False), (128, 1024, True), (32, 49, False)):
        call = partial(functional.scaled_dot_product_attention, is_causal=causal)
        yield f"attention {heads} {length} {causal}", call, ((4, 12, length, heads),) * 3


def layers(torch: Any) -> Iterator[Way]:
    """Norms, losses, lookups and pools."""
    functional = torch.nn.functional

    def labels(count: int, of: int) -> Any:
        return torch.randint(0, of, (count,), device="cuda")

    yield "layer_norm", lambda x, w, b: functional.layer_norm(x, (768,), w, b), (
        (8, 512, 768), (768,), (768,)
    )  # fmt: skip
    yield "rms_norm", lambda x, w: functional.rms_norm(x, (1024,), w), ((4096, 1024), (1024,))
    images = ((8, 256, 56, 56), (256,), (256,))
    yield "group_norm", lambda x, w, b: functional.group_norm(x, 32, w, b), images
    norm = partial(functional.batch_norm, training=True)
    yield "batch_norm", lambda x, w, b: norm(x, None, None, w, b), images
    for rows, classes in ((512, 1000), (2048, 50257)):
        call = partial(_cross_entropy, functional.cross_entropy, labels, classes)
        yield f"cross_entropy {rows}x{classes}", call, ((rows, classes),)
    for count in (128, 3072, 3073, 65536):
        call = partial(_lookup, functional.embedding, labels, count)
        yield f"embedding {count}", call, ((30000, 256),)
    yield "max_pool2d", lambda x: functional.max_pool2d(x, 3, 2, 1), ((32, 64, 112, 112),)
    yield "adaptive_avg_pool2d", lambda x: functional.adaptive_avg_pool2d(x, 7), (
        (32, 512, 14, 14),
    )  # fmt: skip
    for mode in ("nearest", "bilinear", "bicubic"):
        call = partial(functional.interpolate, scale_factor=2, mode=mode)
        yield f"interpolate {mode}", call, ((8, 64, 64, 64),)


def _cross_entropy(loss: Any, labels: Any, classes: int, x: Any) -> Any:
    return loss(x, labels(len(x), classes))


def _lookup(embedding: Any, labels: Any, count: int, weight: Any) -> Any:
    return embedding(labels(count, len(weight)), weight)


def elements(torch: Any) -> Iterator[Way]:
    """Functions of one matrix."""
    functional = torch.nn.functional
    for name in ("softmax", "log_softmax", "logsumexp", "cumsum", "sort", "glu", "normalize"):
        function = getattr(torch, name, None) or getattr(functional, name)
        yield name, partial(_first, function, dim=-1), ((4096, 1024),)
    for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "exp", "dropout"):
        function = getattr(functional, name, None) or getattr(torch, name)
        yield name, function, ((4096, 1024),)
    for name in ("sum", "mean", "var", "norm", "median"):
        yield name, getattr(torch, name), ((4096, 1024),)
    yield "topk", lambda x: x.topk(10)[0], ((4096, 1024),)
    yield "cat", lambda x, y: torch.cat([x, y], 1), ((4096, 1024), (4096, 512))


def _first(function: Any, x: Any, dim: int) -> Any:
    out = function(x, dim=dim)
    return out if hasattr(out, "requires_grad") else out[0]


OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD with momentum": ("SGD", {"momentum": 0.9}),
    "Adam": ("Adam", {}),
    "Adam, no lists": ("Adam", {"foreach": False}),
    "Adam, fused": ("Adam", {"fused": True}),
    "AdamW, amsgrad": ("AdamW", {"amsgrad": True}),
    "RMSprop": ("RMSprop", {}),
    "Adagrad": ("Adagrad", {}),
    "Adafactor": ("Adafactor", {}),
}


def optimizer(kind: str, options: dict[str, Any]) -> dict[str, list[int]]:
    """Record an optimizer's first step, which makes state, and a later one."""
    import torch

    def make() -> list[Any]:
        model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 1000)).cuda()
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        return [getattr(torch.optim, kind)(model.parameters(), **options)]

    return requests_by_moment(make, lambda made: made.step())
