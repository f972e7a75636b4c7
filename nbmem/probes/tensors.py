"""Which storages are weights, gradients, optimizer state, inputs or the notebook's own tensors."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.categories import Category
from nbmem.probes.cuda import loaded_torch
from nbmem.probes.holders.storages import form_of, place_of
from nbmem.probes.modules import (
    is_module,
    is_optimizer,
    is_parameter,
    is_plain_sequence,
    is_tensor,
    named_buffers,
    named_parameters,
    param_groups,
    parameters_of_group,
    states,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

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
    torch: Any = loaded_torch()
    place = place_of(torch, tensor)
    if place is None:
        return None
    return Seen(*place, category, f"{name} {form_of(torch, tensor)}" if form else name)


def address_of(tensor: Any) -> tuple[int, int, int] | None:
    """CUDA ordinal, address and bytes of a tensor's storage; None if it lies on no card."""
    return place_of(loaded_torch(), tensor)


def quiet() -> AbstractContextManager[Any]:
    """Switch off what subclasses and modes have to say, while tensors are looked at."""
    torch: Any = loaded_torch()
    return nullcontext() if torch is None else torch._C.DisableTorchFunction()  # noqa: SLF001


def gradient_of(tensor: Any) -> Any | None:
    """A leaf's gradient; None if it has none. The tensor must be this thread's own."""
    torch: Any = loaded_torch()
    try:
        if torch.Tensor.is_leaf.__get__(tensor):
            return torch.Tensor.grad.__get__(tensor)
    except Exception:  # noqa: BLE001 - a wrapper that answers nothing
        return None
    return None


def requires_grad(tensor: Any) -> bool:
    """Whether a tensor wants a gradient; of a wrapper that answers nothing: yes."""
    torch: Any = loaded_torch()
    try:
        return bool(torch.Tensor.requires_grad.__get__(tensor))
    except Exception:  # noqa: BLE001 - as above
        return True


def of_module(module: Any) -> Iterator[Seen]:
    """The weights and buffers of a module, tied ones once; their names are relative to its own."""
    for category, members in (
        (Category.WEIGHTS, named_parameters(module)),
        (Category.BUFFERS, named_buffers(module)),
    ):
        for member, tensor in members:
            seen = see(tensor, category, f".{member}")
            if seen is not None:
                yield seen


def gradients_of_module(module: Any) -> Iterator[Seen]:
    """The gradients of a module's parameters."""
    for member, parameter in named_parameters(module):
        gradient = gradient_of(parameter)
        if gradient is not None:
            seen = see(gradient, Category.GRADIENTS, f".{member}.grad")
            if seen is not None:
                yield seen


def of_optimizer(optimizer: Any) -> Iterator[Seen]:
    """What an optimizer's state holds, and parameters that belong to no module."""
    for index, (parameter, state) in enumerate(states(optimizer)):
        for key, value in list(dict.items(state)):
            for tensor in value if is_plain_sequence(value) else (value,):
                if is_tensor(tensor) and tensor is not parameter:
                    at = repr(key) if _plain(key) else "..."
                    seen = see(tensor, Category.OPTIMIZER_STATE, f".state[{index}][{at}]")
                    if seen is not None:
                        yield seen


def parameters_of_optimizer(optimizer: Any) -> Iterator[Seen]:
    """An optimizer's parameters: weights also where no module registers them."""
    for group in param_groups(optimizer):
        for index, parameter in enumerate(parameters_of_group(group)):
            seen = see(parameter, Category.WEIGHTS, f".param_groups[...][{index}]")
            if seen is not None:
                yield seen


def inputs_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Seen]:
    """Tensors given to a module call that no graph has made."""
    torch: Any = loaded_torch()
    named = chain(((f"args[{i}]", a) for i, a in enumerate(args)), kwargs.items())
    for name, tensor in _leaves(named):
        if torch.Tensor.grad_fn.__get__(tensor) is None and not is_parameter(tensor):
            seen = see(tensor, Category.INPUTS, f"input {name}")
            if seen is not None:
                yield seen


def in_namespace(namespace: Mapping[str, Any]) -> Iterator[Seen]:
    """Tensors that the notebook names, also in lists, tuples and dicts, and their gradients."""
    for name, tensor in _leaves((n, v) for n, v in list(namespace.items()) if _is_users(n)):
        seen = see(tensor, Category.USER_TENSORS, name)
        if seen is not None:
            yield seen
        gradient = gradient_of(tensor)
        if gradient is not None:
            seen = see(gradient, Category.GRADIENTS, f"{name}.grad")
            if seen is not None:
                yield seen


def modules_in(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The notebook's modules, by name."""
    return ((n, v) for n, v in list(namespace.items()) if _is_users(n) and is_module(v))


def optimizers_in(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The notebook's optimizers, by name."""
    return ((n, v) for n, v in list(namespace.items()) if _is_users(n) and is_optimizer(v))


def _is_users(name: object) -> bool:
    """Whether a name may be the user's; IPython's `Out` and `_` hold tensors, too."""
    return type(name) is str and not (name.startswith("__") and name.endswith("__"))


def _leaves(named: Any) -> Iterator[tuple[str, Any]]:
    """Tensors in nested plain containers, with the path that a person would type."""
    left = MAX_ITEMS
    queue = deque((name, value, 0) for name, value in named)
    while queue and left:
        name, value, depth = queue.popleft()
        left -= 1
        kind = type(value)
        if is_tensor(value):
            yield name, value
        elif depth < MAX_DEPTH and is_plain_sequence(value):
            queue.extend((f"{name}[{i}]", v, depth + 1) for i, v in enumerate(value[:MAX_ITEMS]))
        elif depth < MAX_DEPTH and issubclass(kind, dict):
            items = islice(list(dict.items(value)), MAX_ITEMS)
            queue.extend((f"{name}[{k!r}]", v, depth + 1) for k, v in items if _plain(k))


def _plain(key: object) -> bool:
    """Whether a key can be written in a path without running code of its own."""
    kind = type(key)
    return kind is str or kind is int or kind is bool
