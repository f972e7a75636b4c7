"""The oracle in the place of `nbmem.virtual`.

The stand-in has the cards that are asked for first; a process cannot change them. So a test that
activates a card has a process of its own (process_per_test.py). For nbmem no virtual
card is active: whatever it reads is what a real card's torch and NVML say.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmem.engine.launch import is_alive

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

SLOT = 8 + 16 * 8
"""Bytes of a process in the stand-in's file: its id, and what it holds of each of 16 cards."""

PROCESSES = 512

REAL = "NBMEM_TESTS_REAL_CARD"
"""In the environment of a process: its tests are on the machine's own card."""


class OnlyVirtualError(Exception):
    """A test asks for something that the virtual card alone can be or do."""


class OracleCard:
    """A card's figures for tests, read from torch and the stand-in."""

    def __init__(self, card: Card, index: int) -> None:
        self.card = card
        self.index = index
        self._beside = 0
        self.name, self.total_bytes = card.name, card.total_bytes
        self.nvml_total, self.context_bytes = card.nvml_total, card.context_bytes

    @property
    def allocated(self) -> int:
        return _torch().cuda.memory_allocated(self.index)

    @property
    def reserved(self) -> int:
        return _torch().cuda.memory_reserved(self.index)

    @property
    def free_bytes(self) -> int:
        return _torch().cuda.mem_get_info(self.index)[0]

    @property
    def process_bytes(self) -> int:
        return sum(held[self.index] for pid, held in _slots() if pid == os.getpid())

    @property
    def beside(self) -> int:
        """Return the bytes that another library has taken from the driver."""
        return self._beside

    @beside.setter
    def beside(self, size: int) -> None:
        path, more = Path(os.environ["STANDIN_STATE"]), size - self._beside
        for number, (pid, held) in enumerate(_slots()):
            if pid == os.getpid():
                with path.open("r+b") as file:
                    file.seek(number * SLOT + 8 + 8 * self.index)
                    file.write(struct.pack("=q", held[self.index] + more))
                self._beside = size
                return
        raise OnlyVirtualError("The process holds nothing of the card yet.")

    def __getattr__(self, name: str) -> Any:
        raise OnlyVirtualError(
            f"The oracle's card has no {name!r}: it is torch's and the driver's."
        )


OTHERS: list[subprocess.Popen[bytes]] = []
"""Processes that hold memory of the cards until those are left."""


def _torch() -> Any:
    import torch

    return torch


def activate(  # noqa: PLR0913 - as of virtual.activate
    name: Any = "H100 80GB",
    *,
    release: str | None = None,
    conf: str | None = None,
    other_processes: Mapping[int, int] | int | None = None,
    defer: bool = False,
    eager: bool = False,
) -> OracleCard:
    """Be on those cards, empty; arguments as of `virtual.activate`.

    Raises:
        OnlyVirtualError: The process is on other cards, or only a virtual one can do it.
    """
    del defer, eager
    from nbmem.virtual import find_cards
    from tests.oracle.world import single_rank_rendezvous, use_single_rank_rendezvous

    wanted = find_cards(name)
    if real := on_a_real_card():
        if len(wanted) > 1:
            raise OnlyVirtualError("The machine's first card is the only one that is used.")
        wanted = real.found()
    os.environ["STANDIN_GPU"] = ",".join(card.key for card in wanted)
    torch = _torch()
    if release is not None and release != torch.__version__.split("+")[0]:
        raise OnlyVirtualError(f"The oracle is torch {torch.__version__}, not {release}.")
    if (here := _names()) != [card.name for card in wanted]:
        raise OnlyVirtualError(f"This process is on {', '.join(here)} already, not on {name}.")
    if conf is None:
        conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    _leave()
    use_single_rank_rendezvous(real.alone if real else single_rank_rendezvous)
    if "backend" in conf:
        raise OnlyVirtualError("Torch chooses its allocator when it is imported.")
    new = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # the old one warns
    (new or torch.cuda.memory._set_allocator_settings)(conf or "expandable_segments:False")
    (real.others if real else _others)(other_processes)
    return (real.RealCard if real else OracleCard)(wanted[0], 0)


def deactivate() -> None:
    """Give back what torch keeps of the cards."""
    _leave()


@contextlib.contextmanager
def activated(name: Any = "H100 80GB", **options: Any) -> Iterator[OracleCard]:
    """Be on those cards for a `with` block; arguments as of `activate`."""
    card = activate(name, **options)
    try:
        yield card
    finally:
        deactivate()


def _names() -> list[str]:
    """The cards that the driver has, without making a context."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for number in range(count.value):
        text = ctypes.create_string_buffer(96)
        driver.cuDeviceGetName(text, len(text), number)
        found.append(text.value.decode())
    return found


def _leave() -> None:
    """Free everything on the cards and reset their peaks."""
    for process in OTHERS:
        process.kill()
        process.wait()
    OTHERS.clear()
    torch = _torch()
    if not torch.cuda.is_initialized():
        return
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.empty_cache()
    for number in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(number)
        torch.cuda.reset_accumulated_memory_stats(number)


def _others(held: Mapping[int, int] | int | None) -> None:
    """Start other processes that hold memory of every card."""
    if held is None:
        return
    if isinstance(held, int):
        process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
        OTHERS.append(process)
        held = {process.pid: held}
    path = Path(os.environ["STANDIN_STATE"])
    if not path.exists():  # the stand-in makes it when it is first asked
        path.write_bytes(bytes(SLOT * PROCESSES))
    with path.open("r+b") as file:
        content = file.read()
        free = (at for at in range(0, len(content), SLOT) if not _pid(content, at))
        for (pid, size), at in zip(held.items(), free, strict=False):
            if not is_alive(pid):
                raise OnlyVirtualError(f"No process {pid} is there to hold memory.")
            file.seek(at)
            file.write(struct.pack("=iI16q", pid, 0, *[size] * 16))


def _slots() -> list[tuple[int, tuple[int, ...]]]:
    content = Path(os.environ["STANDIN_STATE"]).read_bytes()
    return [
        (_pid(content, at), struct.unpack_from("=16q", content, at + 8))
        for at in range(0, len(content), SLOT)
    ]


def _pid(content: bytes, at: int) -> int:
    return int(struct.unpack_from("=i", content, at)[0])


def on_a_real_card() -> Any:
    """The module that has what a real card answers in another way; None on the oracle."""
    if not os.environ.get(REAL):
        return None
    from tests.oracle import real

    return real


def put_in(virtual: Any) -> None:
    """Replace the functions of nbmem.virtual."""
    for function in (activate, deactivate, activated):
        setattr(virtual, function.__name__, function)
