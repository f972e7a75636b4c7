"""Find the state that optimizers keep for parameters.

It covers torch's optimizers and classes that do not derive from them. Such a class counts as an
optimizer by its contents, not by its name. It has a method `step`, holds parameters itself (a
trainer holds a module), and has tensors of their shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import chain, islice
from typing import Any

from nbmem.capture.interpreter.object_members import (
    attributes_of,
    entries_of,
    is_a,
    mro_of,
    namespace_of,
)
from nbmem.capture.tensors.modules import (
    is_optimizer,
    is_parameter,
    is_tensor,
    param_groups,
    parameters_of_group,
    states,
)
from nbmem.capture.tensors.tensor_paths import Budget, is_plain_key, reachable_tensors
from nbmem.capture.tensors.tensor_storages import shape_of
from nbmem.capture.tensors.tensors import ObservedStorage, by_storage, observe_parts
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.categories import Category

MAX_ITEMS = 20_000
"""Values of one optimizer that are visited; Adam has three for each parameter."""
MAX_OTHERS = 16
"""Objects that may be optimizers, in one scan of the user's names."""
_KEPT_APART = ("state", "param_groups")


def state_of_optimizer(
    optimizer: Any, named: Callable[[Any], tuple[Any, str] | None] = lambda _: None
) -> Iterator[ObservedStorage]:
    """Yield the state of one of torch's optimizers.

    Tensors in its parameter groups and in attributes of its own are included.

    Args:
        optimizer: The optimizer.
        named: Returns a parameter's owner and its path there (`.head.weight`), or None.
    """
    for index, (parameter, state) in enumerate(states(optimizer)):
        owner, path = named(parameter) or (None, f".state[{index}]")
        yield from _of_parameter(parameter, state, owner, path)
    own = entries_of(attributes_of(optimizer) or {})
    rest = ((f".{name}", value) for name, value in own if _holds_data(name, value))
    groups = (
        (f".param_groups[{i}][{key!r}]", value)
        for i, group in enumerate(param_groups(optimizer))
        for key, value in entries_of(group)
        if is_plain_key(key) and key != "params"
    )
    for name, tensor in reachable_tensors(chain(groups, rest), Budget(MAX_ITEMS)):
        yield from _state(name, tensor, None)


def _of_parameter(parameter: Any, state: Any, owner: Any, path: str) -> Iterator[ObservedStorage]:
    """Yield the state of one parameter, by name."""
    for key, value in entries_of(state):
        if owner is not None:
            at = f"{path}: {key if type(key) is str else '...'}"
        else:
            at = f"{path}[{key!r}]" if is_plain_key(key) else f"{path}[...]"
        pairs = [(at, value)]
        for name, tensor in pairs if is_tensor(value) else reachable_tensors(pairs):
            if tensor is not parameter:
                yield from _state(name, tensor, owner)


def _state(name: str, tensor: Any, owner: Any) -> Iterator[ObservedStorage]:
    if not is_parameter(tensor):
        for seen in observe_parts(tensor, Category.OPTIMIZER_STATE, name):
            yield seen._replace(of=owner)


def _holds_data(name: object, value: Any) -> bool:
    """Return whether an attribute is data, not the model, a hook or a method."""
    if type(name) is not str or name in _KEPT_APART or "hook" in name:
        return False
    kind = type(value)
    return is_tensor(value) or is_a(kind, dict) or is_a(kind, list) or is_a(kind, tuple)


def parameters_of_optimizer(
    optimizer: Any, named: Callable[[Any], tuple[Any, str] | None] = lambda _: None
) -> Iterator[ObservedStorage]:
    """Yield an optimizer's parameters, also those that no module registers.

    They are weights.
    """
    return by_storage(
        seen
        for group in param_groups(optimizer)
        for index, parameter in enumerate(parameters_of_group(group))
        for seen in _weights(
            parameter, *(named(parameter) or (None, f".param_groups[...][{index}]"))
        )
    )


def _weights(parameter: Any, owner: Any, path: str) -> Iterator[ObservedStorage]:
    for seen in observe_parts(parameter, Category.WEIGHTS, path):
        yield seen._replace(of=owner)


class OtherOptimizers:
    """Candidates among the notebook's values for optimizers not of torch's.

    Args:
        known: Ids of torch's optimizers, whose state is read when they step.
    """

    def __init__(self, known: Container[int] = ()) -> None:
        self._known = known
        self._met: dict[int, tuple[str, Any]] = {}

    def add_candidate(self, name: str, obj: Any) -> None:
        """Remember an object that may be an optimizer: its class has `step`."""
        if id(obj) in self._known and is_optimizer(obj):
            return
        if len(self._met) < MAX_OTHERS and any(
            "step" in namespace_of(base) for base in mro_of(type(obj))
        ):
            self._met.setdefault(id(obj), (name, obj))

    def pop_state(
        self, named: Callable[[Any], tuple[Any, str] | None]
    ) -> Iterator[ObservedStorage]:
        """Yield the state that the candidates keep, and release them.

        The names are those of the parameters.
        """
        while self._met:
            yield from _of_another(*self._met.popitem()[1], named)


def _of_another(
    name: str, obj: Any, named: Callable[[Any], tuple[Any, str] | None]
) -> Iterator[ObservedStorage]:
    """Yield an object's tensors that have the shape of its own parameters.

    Entries keyed by a parameter are yielded again under the name of the parameter.
    """
    torch: Any = loaded_torch()
    found = list(reachable_tensors([(name, obj)], Budget(MAX_ITEMS)))
    own = [tensor for _, tensor in found] + _keys_of(obj)
    shapes = {shape_of(torch, tensor) for tensor in own if is_parameter(tensor)} - {None}
    for path, tensor in found if shapes else ():
        if shape_of(torch, tensor) in shapes:
            yield from _state(path, tensor, None)
    for parameter, state in _entries_by_tensor(obj) if shapes else ():  # more specific names
        owner, path = named(parameter) or (None, "")
        if owner is not None and is_a(type(state), dict):
            yield from _of_parameter(parameter, state, owner, path)


def _keys_of(obj: Any) -> list[Any]:
    """Return the tensors by which an object keeps entries."""
    return [key for key, _ in _entries_by_tensor(obj)]


def _entries_by_tensor(obj: Any) -> list[tuple[Any, Any]]:
    """Return an object's dictionary entries that are keyed by tensors.

    torch's optimizers have such entries: `state[p]`.
    """
    kept = (value for _, value in entries_of(attributes_of(obj) or {}))
    pairs = chain.from_iterable(entries_of(k, MAX_ITEMS) for k in kept if is_a(type(k), dict))
    return [(key, value) for key, value in islice(pairs, MAX_ITEMS) if is_tensor(key)]
