"""The virtual machine: its cards, and each thread's current card.

Most programs have one card, and most of this package is about one: VirtualGPU. torch names a card
by its ordinal, by a device or not at all; the machine returns the card that is meant.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmem.allocator.driver import CARD_STEP
from nbmem.virtual.devices import CUDA, LAZY, cpp_device
from nbmem.virtual.hardware.cudnn.client import CudnnClient
from nbmem.virtual.hardware.forks import BAD_FORK
from nbmem.virtual.hardware.gpu import VirtualGPU

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

_INVALID_ORDINAL = (
    "CUDA error: invalid device ordinal\n"
    "GPU device may be out of range, do you have enough GPUs?\n"
    "The virtual machine has {count}: cuda:0{last}. Ask for more as in 2xT4."
)


class Machine:
    """The cards of one activation.

    Attributes:
        gpus: The cards by CUDA ordinal, one at least.
        lock: The lock of every card.
        by_device: The cards by the device of a tensor, in C++ and in Python.
    """

    def __init__(
        self,
        cards: Sequence[Card],
        *,
        release: str,
        conf: str | None,
        other_processes: Mapping[int, int] | None = None,
    ) -> None:
        notes: list[str] = []
        workers = {card: CudnnClient(card) for card in cards}
        self.lock = threading.RLock()
        self.gpus = tuple(
            VirtualGPU(
                card,
                index=index,
                release=release,
                conf=conf,
                other_processes=other_processes,
                notes=notes,
                dnn=workers[card],
                lock=self.lock,
            )
            for index, card in enumerate(cards)
        )
        self.by_device: dict[object, VirtualGPU] = {
            device: gpu for gpu in self.gpus for device in (LAZY[gpu.index], CUDA[gpu.index])
        }
        self._thread = _CurrentDevice()
        self._asked = False
        self._replaced: tuple[int, tuple[VirtualGPU, ...]] | None = None

    @property
    def current(self) -> VirtualGPU:
        """The current card of this thread; initially the first one."""
        return self.gpus[self._thread.index]

    def gpu(self, device: Any = None) -> VirtualGPU:
        """Return the card of a device; None, "cuda" or -1 mean the current one.

        All negative ordinals do.

        Raises:
            RuntimeError: There are not so many cards.
        """
        known = self.by_device.get(device)
        if known is not None:
            return known
        if isinstance(device, str):
            device = torch.device(device)
        index = device.index if isinstance(device, torch.device) else device
        if index is None or index < 0:
            return self.current
        if index >= len(self.gpus):
            raise _cuda_error(len(self.gpus))
        return self.gpus[index]

    def of(self, tensor: torch.Tensor) -> VirtualGPU:
        """Return the card of a virtual tensor."""
        return self.by_device[cpp_device(tensor)]

    def select(self, device: Any, *, touch: bool = True) -> int:
        """Make a card this thread's current one; return the previous ordinal.

        Args:
            device: Which one.
            touch: Make its context, as cudaSetDevice does since CUDA 12.
        """
        before, gpu = self._thread.index, self.gpu(device)
        if touch:
            gpu.initialize()
        self._thread.index = gpu.index
        return before

    @property
    def initialized(self) -> bool:
        """True if torch has initialized CUDA, which creates no context by itself."""
        return self._asked or any(gpu.initialized for gpu in self.gpus)

    def initialize(self) -> None:
        """Initialize CUDA as torch.cuda.init() does.

        Raises:
            RuntimeError: This process was forked from one that had done so.
        """
        if self.bad_fork:
            raise RuntimeError(BAD_FORK)
        self._asked = True

    @property
    def bad_fork(self) -> bool:
        """True if this process was forked from one that had initialized CUDA."""
        return self.gpus[0].bad_fork

    def forked(self) -> None:
        """Drop the contexts in a forked child, which cannot create new ones.

        Nothing happens if CUDA was not initialized before the fork.
        """
        if self.initialized:
            self._asked = False
            for gpu in self.gpus:
                gpu.initialized, gpu.bad_fork = False, True

    def give(self, addr: int) -> None:
        """Free a block of the card that holds that address."""
        self.gpus[addr // CARD_STEP].give(addr)

    def replace(self, gpus: Sequence[VirtualGPU]) -> None:
        """Replace all cards by as many others; live tensors keep their addresses.

        Readings of other threads are of the cards as they were: see `gpu_to_read`.
        """
        self._replaced = threading.get_ident(), self.gpus
        self._set_cards(gpus)

    def restore(self) -> None:
        """Undo `replace`."""
        if self._replaced is not None:
            self._set_cards(self._replaced[1])
            self._replaced = None

    def _set_cards(self, gpus: Sequence[VirtualGPU]) -> None:
        self.gpus = tuple(gpus)
        for gpu in self.gpus:
            self.by_device[LAZY[gpu.index]] = self.by_device[CUDA[gpu.index]] = gpu

    def gpu_to_read(self, device: Any = None) -> VirtualGPU:
        """Return the card whose counters a thread reads, by its device.

        A thread that samples the cards must not read those on which another thread runs a region
        again: NVML shows the program's own.
        """
        replaced = self._replaced
        if replaced is None or replaced[0] == threading.get_ident():
            return self.gpu(device)
        return replaced[1][self.gpu(device).index]

    def serialized(self, functions: dict[str, Any]) -> dict[str, Any]:
        """Wrap functions so that one thread at a time runs any of them.

        torch's allocator has a lock, too. The mapping is by name.
        """

        def locked(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                with self.lock:
                    return function(*args, **kwargs)

            return call

        return {name: locked(function) for name, function in functions.items()}

    def peers(self, device: int, other: int) -> bool:
        """Return whether two different cards can access each other's memory.

        Data-centre cards can, GeForce cards cannot.
        """
        pair = self.gpu(device), self.gpu(other)
        return pair[0] is not pair[1] and not any("GeForce" in gpu.card.name for gpu in pair)


class _CurrentDevice(threading.local):
    """The ordinal of a thread's current card; threads begin with the first."""

    index = 0


def _cuda_error(count: int) -> RuntimeError:
    """Build torch's error for a card that does not exist."""
    last = f" to cuda:{count - 1}" if count > 1 else ""
    cards = "one card" if count == 1 else f"{count} cards"
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(_INVALID_ORDINAL.format(count=cards, last=last))
