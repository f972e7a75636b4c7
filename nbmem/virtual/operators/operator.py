"""In which order a kernel takes its results and its temporaries from the allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.cudnn.client import Client
    from nbmem.virtual.tensors.calls import Call
    from nbmem.virtual.tensors.shapes import TensorSpec


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a kernel does with memory.

    Attributes:
        kind: "out", "host", "temporary", "drop", "blas", "blaslt" or "dnn".
        number: Which fresh result, for "out".
        nbytes: Bytes of a temporary.
        name: What a temporary is; a later "drop" frees it, else the end of the call does.
    """

    kind: str
    number: int = 0
    nbytes: int = 0
    name: str = ""


def out(number: int = 0) -> Step:
    """The kernel allocates a result."""
    return Step("out", number=number)


def host(number: int) -> Step:
    """A result that the operator leaves on the CPU."""
    return Step("host", number=number)


def temporary(name: str, nbytes: int) -> Step:
    """The kernel allocates scratch memory."""
    return Step("temporary", nbytes=int(nbytes), name=name)


def drop(name: str) -> Step:
    """It frees it before the call ends."""
    return Step("drop", name=name)


BLAS = Step("blas")
"""A cuBLAS call: this thread's handle has a workspace from now on."""
BLASLT = Step("blaslt")
"""A cuBLASLt call with its own workspace beside."""
DNN = Step("dnn")
"""A cuDNN call."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of a call; results that no step names are allocated at the end, in order."""

    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """What a rule may look at.

    Attributes:
        call: The operator and its arguments; a rule reads geometry only.
        outs: The fresh results.
        card: The card.
        dnn: Whom to ask for the kernels of cuDNN; None where only rules are wanted.
    """

    call: Call
    outs: tuple[TensorSpec, ...]
    card: Card
    dnn: Client | None = None

    def __getitem__(self, name: str) -> Any:
        return self.call.argument(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One line of the table.

    Attributes:
        ops: Operators, as "name.overload" of aten.
        rule: The steps of a launch.
        source: Where torch allocates so.
        shown_by: A recorded run that shows it.
    """

    ops: tuple[str, ...]
    rule: Callable[[Launch], Iterator[Step]]
    source: str
    shown_by: str
