"""Put a card in for one run: nbmem.virtual's, or that of the engine torch.

A process cannot leave the card of the engine torch, nor empty it. So a run on it has a fork of this
process, which has not used the card.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nbmem.core.errors import NbmemError
from nbmem.engine import process
from nbmem.estimates.programs.environment import Plans
from nbmem.estimates.runs import pipe_messages

if TYPE_CHECKING:
    from nbmem.allocator.recordings.request_recorder import RequestRecorder
    from nbmem.allocator.recordings.request_sequence import RequestSequence
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.gpu import VirtualGPU

Result = TypeVar("Result")

MOST_BYTES = 1 << 42
"""Size of the engine torch's largest card: torch reserves as many addresses for each growing
segment, and a process has 32 times as many."""


class RunOptions(NamedTuple):
    """A run's cards, and its use of them.

    Attributes:
        cards: The cards.
        margin: Bytes that others hold of each.
        conf: Allocator settings; None for the environment's.
        eager: Run compiled functions eagerly.
    """

    cards: tuple[Card, ...]
    margin: int = 0
    conf: str | None = None
    eager: bool = True


class RunCard:
    """The cards of a run on nbmem.virtual."""

    def __init__(self) -> None:
        from nbmem import virtual

        self._gpus = virtual.gpus()
        self._recorders = [_recorder(gpu) for gpu in self._gpus]

    def context(self) -> int:
        """Return the bytes of a card's context and its libraries' handles."""
        return max(gpu.context_bytes for gpu in self._gpus)

    def requests(self) -> tuple[RequestSequence, ...]:
        """Return the requests on each card, where they were recorded."""
        found = [recorder.sequence() for recorder in self._recorders]
        return tuple(sequence for sequence in found if sequence is not None)


class TorchRunCard(RunCard):
    """The card of a run on the engine torch.

    Args:
        margin: Bytes that others hold of it.
    """

    def __init__(self, margin: int) -> None:
        self._margin = margin

    def context(self) -> int:
        """Return what the process holds beyond torch's allocator."""
        import torch

        if not torch.cuda.is_initialized():
            return 0
        free, total = torch.cuda.mem_get_info()
        return int(total - free - self._margin - torch.cuda.memory_reserved())

    def requests(self) -> tuple[RequestSequence, ...]:
        """Return nothing: requests are recorded by nbmem's own allocator."""
        return ()


@contextlib.contextmanager
def in_use(options: RunOptions) -> Iterator[RunCard]:
    """Put the cards in for a `with` block.

    On the engine torch they stay until the process ends.
    """
    if process.active():
        _begin(options)
        yield TorchRunCard(options.margin)
        return
    from nbmem import virtual

    with virtual.activated(
        options.cards,
        conf=options.conf,
        other_processes=options.margin,
        defer=True,
        eager=options.eager,
        keep=Plans.folder,
    ):
        yield RunCard()


def _begin(options: RunOptions) -> None:
    """Make the stand-in of this process the cards of a run, and keep it so."""
    import torch

    card = options.cards[0]
    process.begin(card.key, min(card.total_bytes, MOST_BYTES), options.margin)
    process.follow_values()
    if options.conf is not None:
        new = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # noqa: SLF001 - the old one warns
        (new or torch.cuda.memory._set_allocator_settings)(options.conf)  # noqa: SLF001 - no other way
    if options.eager and hasattr(torch.compiler, "set_stance"):
        torch.compiler.set_stance("force_eager")


def is_forked() -> bool:
    """Return whether each run has a fork of this process."""
    return process.active()


def run_forked(work: Callable[[], Result]) -> Result:
    """Run a function where it finds an unused card, and return its result.

    On the engine torch that is a fork of this process, so its result is pickled.

    Raises:
        NbmemError: The function raised one, or its process has ended.
    """
    if sys.platform == "win32" or not process.active():
        return work()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with contextlib.suppress(BaseException):
            pipe_messages.write(writer, _answer(work))
        os._exit(0)
    os.close(writer)
    try:
        well, found = pickle.loads(pipe_messages.read(reader))  # noqa: S301 - from our own fork
    except EOFError:
        well, found = False, "The process of a run ended by itself."
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    if not well:
        raise NbmemError(found)
    result: Result = found
    return result


def _answer(work: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps((True, work()))
    except NbmemError as err:
        return pickle.dumps((False, str(err)))
    except BaseException:  # noqa: BLE001 - a fault of nbmem's, which the caller reports
        return pickle.dumps((False, f"It is a fault of nbmem's:\n{traceback.format_exc()}"))


def _recorder(gpu: VirtualGPU) -> RequestRecorder:
    """Record a card's requests; without workspaces, cuDNN has other kernels."""
    from nbmem.allocator.recordings.request_recorder import RequestRecorder  # imports numpy

    return RequestRecorder(
        gpu.allocator,
        outside=lambda: gpu.context_bytes + gpu.library_bytes,
        attempt=lambda: gpu.workspaces.kernels.trying,
    )
