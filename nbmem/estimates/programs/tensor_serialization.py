"""Pickle tensors as shapes and storages without data, sharing kept."""

from __future__ import annotations

import sys
from typing import Any

SMALL = 16 << 20
"""Bytes up to which a CPU tensor is pickled with its values: they may steer the program."""


def reduce(value: Any, notes: dict[str, None]) -> Any:
    """Return pickle's reduction of a tensor or generator.

    NotImplemented for anything else.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, (torch.Tensor, torch.Generator)):
        return NotImplemented
    if isinstance(value, torch.Generator):
        seed = value.initial_seed()
        return _new_generator, (str(value.device), seed)
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"cannot copy a tensor of the class {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TypeError(f"cannot copy a tensor of layout {value.layout}")
    if value.grad_fn is not None:
        notes["an autograd history is not copied, so what it keeps alive is not counted"] = None
    plain = value.detach()
    made = (
        plain.untyped_storage(), plain.dtype, tuple(plain.size()), plain.stride(),
        plain.storage_offset(), bool(value.requires_grad),
        isinstance(value, torch.nn.Parameter),
    )  # fmt: skip
    state = {"grad": value.grad if value.is_leaf else None, "dict": dict(value.__dict__)}
    return _new_tensor, made, state, None, None, _fill_tensor


def storage_id(value: Any, notes: dict[str, None]) -> Any:
    """Return a storage's key in the pickle, or None for other values.

    A key has identity, device, bytes and values.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.UntypedStorage):
        return None
    device, nbytes = value.device.type, value.nbytes()
    values = None
    if device == "cpu" and nbytes <= SMALL:
        values = bytes(torch.empty(0, dtype=torch.uint8).set_(value).numpy())
    elif device == "cpu":
        notes["tensors on the CPU of more than 16 MiB have zeros for values here"] = None
    return value._cdata, device, nbytes, values  # noqa: SLF001 - torch's own key of a storage


def new_storage(device: str, nbytes: int, values: bytes | None) -> Any:
    """Create a storage of a size; on the card, from its allocator."""
    import torch

    if values:
        return torch.frombuffer(bytearray(values), dtype=torch.uint8).untyped_storage()
    return torch.zeros(nbytes, dtype=torch.uint8, device=device).untyped_storage()


def _new_generator(device: str, seed: int) -> Any:
    import torch

    return torch.Generator(device).manual_seed(seed)


def _new_tensor(  # noqa: PLR0913, PLR0917 - a tensor's geometry
    storage: Any,
    dtype: Any,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,  # noqa: FBT001
    parameter: bool,  # noqa: FBT001
) -> Any:
    import torch

    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    tensor = tensor.set_(storage, offset, size, stride)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _fill_tensor(tensor: Any, state: dict[str, Any]) -> None:
    if state["grad"] is not None:
        tensor.grad = state["grad"]
    tensor.__dict__.update(state["dict"])
