"""An operator call on the virtual card: its tensors and its schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU

aten = torch.ops.aten

ALIASES = frozenset({aten._unsafe_view.default, aten._reshape_alias.default})
"""Operators whose result shares an argument's storage although the schema does not declare it. This
corrects torch's schemas for every reader of them, not only for the card."""


_BY_MASK = frozenset({aten.index.Tensor, aten.repeat_interleave.Tensor})
"""Operators that wait for values with some arguments alone."""
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_OWN = frozenset(
    {"aten", "prim", "prims", "c10d", "_c10d_functional", "fsdp", "inductor", "profiler"}
)
_CPU = torch._C.DispatchKey.CPU
_KERNEL_ON_CUDA = frozenset({"aten::_fused_rms_norm"})
"""Composite on the CPU alone. A shape rule does not make a kernel: composites have such, too."""

_IN_LISTS = ("aten::_foreach_", "aten::_fused_")
"""Kernels of optimizers, some of whose numbers change at every step."""


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Properties of an operator, from its schema and its tags.

    Attributes:
        view: The result shares storage with an argument.
        reshapes: It changes the geometry of an argument in place (t_, squeeze_).
        mutates: Positions (or names) of the arguments that it writes to.
        random: Its result depends on a random number generator.
        composite: It only consists of other operators; dispatched where autograd is disabled.
        counts: Its kernel itself increments the version of the tensors in its first argument.
            For operators on one tensor autograd has done that before.
            https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/ForeachFunctors.cuh
        foreign: It is no operator of torch's own.
        waits: The host waits for values of its arguments.
        scales: Its numbers change only values: neither shapes nor memory depend on them, as in
            `add_(x, alpha=0.1)` or in a list's `addcdiv_`.
    """

    view: bool
    reshapes: bool
    mutates: tuple[int | str, ...]
    random: bool
    composite: bool
    counts: bool
    foreign: bool
    waits: bool
    scales: bool


@cache
def facts_of(func: Any) -> OpFacts:
    """Return the properties of an operator, cached."""
    mutates: list[int | str] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            mutates.append(argument.name if argument.kwarg_only else position)
    return OpFacts(
        view=not mutates and (func.is_view or func in ALIASES),
        reshapes=torch.Tag.inplace_view in func.tags,
        mutates=tuple(mutates),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        # silu_backward and its like have a decomposition, but kernels of their own, too.
        composite=func.has_kernel_for_dispatch_key(COMPOSITE)
        and not func.has_kernel_for_dispatch_key(_CPU)
        and func._schema.name not in _KERNEL_ON_CUDA,
        counts=mutates[:1] == [0] and func._schema.name.startswith("aten::_foreach_"),
        foreign=func.namespace not in _OWN,
        waits=torch.Tag.data_dependent_output in func.tags
        or (torch.Tag.dynamic_output_shape in func.tags and func not in _BY_MASK),
        scales=(
            torch.Tag.pointwise in func.tags and torch.Tag.nondeterministic_seeded not in func.tags
        )
        or (bool(mutates) and func._schema.name.startswith(_IN_LISTS)),
    )


def has_own_composite(func: Any) -> bool:
    """Return whether an operator has a composite kernel in C++.

    A Python decomposition for tracers may differ from that kernel.
    """
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSITE.name))


class OperatorCall:
    """An operator with its arguments; lives no longer than the call.

    Attributes:
        func: The operator.
        args: Positional arguments.
        kwargs: Keyword arguments.
        tensors: Every tensor among them, lists of tensors included, in order.
        gpu: The card on which it runs; set once that is known, before anybody handles the call.
    """

    __slots__ = ("args", "func", "gpu", "kwargs", "tensors")

    gpu: VirtualGPU

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors_in(args, kwargs)

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name in the schema."""
        if name in self.kwargs:
            return self.kwargs[name]
        for position, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                if position < len(self.args):
                    return self.args[position]
                return argument.default_value if argument.has_default_value() else default
        return default

    def map(self, change: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with `change(tensor)` in place of each tensor."""
        args = tuple(_map(arg, change) for arg in self.args)
        return args, {name: _map(arg, change) for name, arg in self.kwargs.items()}

    def mutated(self) -> list[torch.Tensor]:
        """Return the tensors that the operator writes to."""
        found: list[torch.Tensor] = []
        for place in facts_of(self.func).mutates:
            if isinstance(place, str):
                value = self.kwargs.get(place)
            else:
                value = self.args[place] if place < len(self.args) else None
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif isinstance(value, (list, tuple)):
                found.extend(t for t in value if isinstance(t, torch.Tensor))
        return found


def tensors_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Collect the tensors among arguments, in lists one level deep, too."""
    found: list[torch.Tensor] = []
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, (list, tuple)):
            found.extend(t for t in arg if isinstance(t, torch.Tensor))
    return found


def operator_of(name: str) -> Any:
    """Look up an operator by "name.overload" or "library::name".

    Names without a library are aten's. None if there is no such operator.
    """
    space, _, name = name.rpartition("::")
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops, space or "aten"), packet, None)
    return getattr(found, overload or "default", None) if found is not None else None


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(item, change) for item in value)
    return value
