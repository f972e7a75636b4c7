"""The record that describes one operator on a virtual card.

dispatch/card_mode.py has the order in which the parts apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._prims_common import suggest_memory_format

from nbmem.allocator.torch_rules import Rules, rules_for
from nbmem.virtual.tensors.host.lazy_tensors import HostRule, LazyTensors
from nbmem.virtual.tensors.value_rules import ValueRule

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.cudnn.client import CudnnClient
    from nbmem.virtual.hardware.cudnn.problem import Kernels
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.operator_model.running_node import RunningNode
    from nbmem.virtual.tensors.host.pinned import Pinned
    from nbmem.virtual.tensors.operator_call import OperatorCall
    from nbmem.virtual.tensors.shapes import Results, TensorSpec
    from nbmem.virtual.tensors.storages import Storages
    from nbmem.virtual.tensors.values import Values

    MemoryRule = Callable[["Launch"], Iterator["Step"]]
    ShapeRule = Callable[[OperatorCall], Results]
    Handler = Callable[["Executor", OperatorCall], Any]

LONG = 8
"""Bytes of an index or a count."""
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a kernel's memory plan.

    Attributes:
        kind: "out", "host", "temporary", "drop", "blas", "blaslt" or "dnn".
        number: Which fresh result, for "out".
        nbytes: Bytes of a temporary.
        name: What a temporary is; a later "drop" frees it, else the end of the call does.
        kernels: Among which a convolution chooses, for "dnn".
    """

    kind: str
    number: int = 0
    nbytes: int = 0
    name: str = ""
    kernels: Kernels | None = None


def out(number: int = 0) -> Step:
    """Return a step in which the kernel allocates a result."""
    return Step("out", number=number)


def host(number: int) -> Step:
    """Return a step for a result on the CPU; a graph capture differs."""
    return Step("host", number=number)


def temporary(name: str, nbytes: int) -> Step:
    """Return a step in which the kernel allocates scratch memory."""
    return Step("temporary", nbytes=int(nbytes), name=name)


def drop(name: str) -> Step:
    """Return a step in which scratch memory is freed before the call ends."""
    return Step("drop", name=name)


BLAS = Step("blas")
"""A cuBLAS call: this thread's handle has a workspace from now on."""
BLASLT = Step("blaslt")
"""A cuBLASLt call with its own workspace beside."""
DNN = Step("dnn")
"""A cuDNN call."""


def convolve(kernels: Kernels) -> Step:
    """Return a step for a cuDNN convolution with one of several kernels.

    The step takes the workspace of the kernel that is chosen.
    """
    return Step("dnn", kernels=kernels)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory steps of one call, in the kernel's order.

    Results that no step names are allocated at the end, in order.
    """

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One operator call, as memory rules see it.

    Attributes:
        call: The operator and its arguments; a rule reads geometry only.
        outs: The fresh results.
        card: The card.
        dnn: The client that lists cuDNN's kernels; None if only rules are wanted.
        rules: Differences between torch's releases; default: the running release.
    """

    call: OperatorCall
    outs: tuple[TensorSpec, ...]
    card: Card
    dnn: CudnnClient | None = None
    rules: Rules = field(default_factory=lambda: rules_for(torch.__version__))

    def __getitem__(self, name: str) -> Any:
        return self.call.argument(name)


def outs(launch: Launch) -> Iterator[Step]:
    """Yield a step for each result, in order."""
    for number in range(len(launch.outs)):
        yield out(number)


def contiguous(*tensors: Any, format_of: Any = None) -> Iterator[Step]:
    """Yield copies of arguments that are not contiguous.

    The copies are freed at the end of the call.

    Args:
        tensors: The arguments; None among them is none.
        format_of: The tensor whose memory format they are copied to; None: C-contiguous.
    """
    wanted = torch.contiguous_format if format_of is None else suggest_memory_format(format_of)
    for number, tensor in enumerate(tensors):
        if tensor is not None and not tensor.is_contiguous(memory_format=wanted):
            yield temporary(f"contiguous {number}", tensor.numel() * tensor.element_size())


def outs_then_copies(*names: str, format_of: str = "") -> MemoryRule:
    """Return a rule: the results, then contiguous copies of these arguments.

    Contiguous arguments are not copied.

    Args:
        names: The arguments, in the order in which the kernel reads them.
        format_of: The argument whose memory format they are copied to; "": C-contiguous.
    """

    def rule(launch: Launch) -> Iterator[Step]:
        yield from outs(launch)
        if any(spec.nbytes for spec in launch.outs):
            of = launch[format_of] if format_of else None
            yield from contiguous(*(launch[name] for name in names), format_of=of)

    return rule


class Executor(Protocol):
    """The card as run and autograd handlers use it.

    Operators that are called while it is entered run on the card.

    Attributes:
        storages: The blocks behind virtual storages.
        values: Known values and facts about values.
        host: Large CPU tensors that no operator has read yet.
        pinned: CPU tensors that were requested as pinned.
        nodes: The autograd node that the engine is running.
    """

    storages: Storages
    values: Values
    host: LazyTensors
    pinned: Pinned
    nodes: RunningNode

    def __enter__(self) -> Any: ...

    def __exit__(self, *exc: object) -> Any: ...

    def execute(self, call: OperatorCall) -> Any:
        """Run a call by its shape rule and take its kernel's memory."""

    def deliver(self, call: OperatorCall, results: Results, plan: MemoryPlan | None = None) -> Any:
        """Take memory in the kernel's order and build the call's results."""

    def allocate(
        self, gpu: VirtualGPU, fresh: tuple[TensorSpec, ...], plan: MemoryPlan | None = None
    ) -> list[torch.Tensor]:
        """Allocate new tensors on a card."""


FOLLOWED = ValueRule()
"""Of an operator that is run on known values, and makes others unknown."""
CARRIED_OUT = HostRule()
"""Of one that reads its arguments."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The record of an operator or of several alike; each part is optional.

    Attributes:
        names: As "name.overload" of aten, without the overload for "default"; "name.*" is every
            overload without a record of its own; "library::name" is another library's.
        composite: The operators that CUDA makes of it, where torch's C++ chooses by the device.
        is_kernel: Whether CUDA has a kernel of what is composite on other devices.
        autograd: What a formula of autograd does differently while a dispatch mode is active
            (autograd_differences.py); may return NotImplemented.
        run: Runs the call itself, without a shape rule; may return NotImplemented.
        refuse: Raises where the kernel would, in torch's words, and the shape rule would not.
        mixes_devices: Whether it takes CPU tensors of any shape beside those on the card.
        shape: Its results, where torch's own rule does not give them as CUDA does, or there is
            none.
        memory: The steps of a launch: results, temporaries, library calls, in the kernel's order;
            None: its results, in order, and nothing else.
        values: What it does to known values.
        host: What it does to large tensors on the CPU that are left unwritten.
        source: Where torch does so: a file and a function.
        shown_by: A recorded run that shows the memory; by default the oracle alone does.
    """

    names: tuple[str, ...]
    composite: Callable[..., Any] | None = None
    is_kernel: bool = False
    autograd: Handler | None = None
    run: Handler | None = None
    refuse: Callable[[OperatorCall], None] | None = None
    mixes_devices: bool = False
    shape: ShapeRule | None = None
    memory: MemoryRule | None = None
    values: ValueRule = FOLLOWED
    host: HostRule = CARRIED_OUT
    source: str = ""
    shown_by: str = "the oracle (tests/oracle)"


def by_parts(parts: Callable[..., Any]) -> Handler:
    """Return a handler that runs the operators that a kernel calls.

    To autograd it is one operator.
    """

    def run(executor: Executor, call: OperatorCall) -> Any:
        with executor:
            return parts(*call.args, **call.kwargs)

    return run
