"""Which storages are weights, gradients, optimizer state, inputs or the notebook's own tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from nbmem.core.categories import Category
from nbmem.probes.cuda import loaded_torch

MAX_ITEMS = 20_000
"""Containers of the notebook are looked into up to so many items together."""
MAX_DEPTH = 4
"""... and so deep (`history["losses"][3]` is 2)."""


class Seen(NamedTuple):
    """A storage on a card, seen now.

    Attributes:
        device: CUDA ordinal.
        addr: Address of the storage.
        size: Bytes of the storage.
        category: What it is.
        name: Its name and form; for what belongs to a module or an optimizer, behind that one's.
        before: What stands before the name of that module or optimizer.
    """

    device: int
    addr: int
    size: int
    category: Category
    name: str
    before: str = ""


def see(tensor: Any, category: Category, name: str, *, form: bool = True) -> Seen | None:
    """Look at one tensor; None if it is on no card or has no storage.

    Args:
        tensor: Any tensor; it is not held.
        category: What it is.
        name: Its name.
        form: Add shape and dtype to the name.
    """
    if not tensor.is_cuda:
        return None
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, a wrapper subclass: no storage of its own
        return None
    addr = storage.data_ptr()
    if not addr:
        return None
    if form:
        name = f"{name} {_form(tensor)}"
    return Seen(tensor.device.index or 0, addr, storage.nbytes(), category, name)


def _form(tensor: Any) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def of_module(module: Any) -> Iterator[Seen]:
    """The weights and buffers of a module, tied ones once; their names are relative to its own."""
    for category, members in (
        (Category.WEIGHTS, module.named_parameters()),
        (Category.BUFFERS, module.named_buffers()),
    ):
        for member, tensor in members:
            seen = see(tensor, category, f".{member}")
            if seen is not None:
                yield seen


def gradients_of_module(module: Any) -> Iterator[Seen]:
    """The gradients of a module's parameters."""
    for member, parameter in module.named_parameters():
        if parameter.grad is not None:
            seen = see(parameter.grad, Category.GRADIENTS, f".{member}.grad")
            if seen is not None:
                yield seen


def of_optimizer(optimizer: Any) -> Iterator[Seen]:
    """What an optimizer's state holds, and parameters that belong to no module."""
    for index, (parameter, state) in enumerate(optimizer.state.items()):
        if not isinstance(state, Mapping):
            continue
        for key, value in state.items():
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if _is_tensor(tensor) and tensor is not parameter:
                    seen = see(tensor, Category.OPTIMIZER_STATE, f".state[{index}][{key!r}]")
                    if seen is not None:
                        yield seen


def parameters_of_optimizer(optimizer: Any) -> Iterator[Seen]:
    """An optimizer's parameters: weights also where no module registers them."""
    for group in optimizer.param_groups:
        for index, parameter in enumerate(group["params"]):
            seen = see(parameter, Category.WEIGHTS, f".param_groups[...][{index}]")
            if seen is not None:
                yield seen


def inputs_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Seen]:
    """Tensors given to a module call that no graph has made."""
    named = chain(((f"args[{i}]", a) for i, a in enumerate(args)), kwargs.items())
    for name, tensor in _leaves(named):
        if tensor.grad_fn is None and not _is_parameter(tensor):
            seen = see(tensor, Category.INPUTS, f"input {name}")
            if seen is not None:
                yield seen


def in_namespace(namespace: Mapping[str, Any]) -> Iterator[Seen]:
    """Tensors that the notebook names, also in lists, tuples and dicts, and their gradients."""
    for name, tensor in _leaves((n, v) for n, v in list(namespace.items()) if _is_users(n)):
        seen = see(tensor, Category.USER_TENSORS, name)
        if seen is not None:
            yield seen
        if tensor.is_leaf and tensor.grad is not None:
            seen = see(tensor.grad, Category.GRADIENTS, f"{name}.grad")
            if seen is not None:
                yield seen


def modules_in(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The notebook's modules, by name."""
    torch: Any = loaded_torch()
    for name, value in list(namespace.items()):
        if _is_users(name) and isinstance(value, torch.nn.Module):
            yield name, value


def optimizers_in(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The notebook's optimizers, by name."""
    torch: Any = loaded_torch()
    for name, value in list(namespace.items()):
        if _is_users(name) and isinstance(value, torch.optim.Optimizer):
            yield name, value


def _is_users(name: str) -> bool:
    """Whether a name may be the user's; IPython's `Out` and `_` hold tensors, too."""
    return not (name.startswith("__") and name.endswith("__"))


def _leaves(named: Any) -> Iterator[tuple[str, Any]]:
    """Tensors in nested plain containers, with the path that a person would type."""
    torch: Any = loaded_torch()
    left = MAX_ITEMS
    queue = deque((name, value, 0) for name, value in named)
    while queue and left:
        name, value, depth = queue.popleft()
        left -= 1
        if isinstance(value, torch.Tensor):
            yield name, value
        elif depth < MAX_DEPTH and type(value) in (list, tuple):
            queue.extend((f"{name}[{i}]", v, depth + 1) for i, v in enumerate(value[:MAX_ITEMS]))
        elif depth < MAX_DEPTH and isinstance(value, dict):
            items = list(value.items())[:MAX_ITEMS]
            queue.extend((f"{name}[{k!r}]", v, depth + 1) for k, v in items if _plain(k))


def _plain(key: object) -> bool:
    """Whether a key can be written in a path without running code of its own."""
    return type(key) in (str, int, bool)


def _is_tensor(value: object) -> bool:
    torch: Any = loaded_torch()
    return isinstance(value, torch.Tensor)


def _is_parameter(value: object) -> bool:
    torch: Any = loaded_torch()
    return isinstance(value, torch.nn.Parameter)
