"""Environment in which Python loads the stand-in's libraries first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nbmem.engine import TORCH, build, cache, process
from nbmem.engine.availability import require
from nbmem.engine.cache import print_progress
from nbmem.virtual.card_names import find_cards

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from nbmem.virtual.cards import Card

VISIBLE, STATE = "CUDA_VISIBLE_DEVICES", "STANDIN_STATE"


def compilers_own(site: Path, built: Path) -> Path:
    """Return a folder with the libraries that NVRTC opens by name.

    It is one of its own: beside them lie the CUDA libraries that the stand-in takes the place of.
    """
    folder = built / "nvrtc"
    folder.mkdir(exist_ok=True)
    for library in site.glob("nvidia/*/lib/libnvrtc-builtins.so.*"):
        with suppress(FileExistsError):
            (folder / library.name).symlink_to(library)
    return folder


def state_file(folder: Path) -> Path:
    """Return the file in which this process and its children see each other.

    It bears this process's number, which exec keeps. Files of processes that have ended are
    removed.
    """
    folder.mkdir(exist_ok=True)
    for path in folder.glob("state.*"):
        number = path.suffix[1:]
        if not (number.isdecimal() and is_alive(int(number))):
            path.unlink(missing_ok=True)
    return folder / f"state.{os.getpid()}"


def is_alive(pid: int) -> bool:
    """Return whether a process of this number runs; for POSIX alone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def environment(
    gpu: str | Card | tuple[Card, ...],
    *,
    values: bool = True,
    tell: Callable[[str], None] = print_progress,
) -> dict[str, str]:
    """Return the environment of a process on these cards.

    What is missing of the stand-in is compiled before.

    Args:
        gpu: Cards as `virtual.find_cards` takes them.
        values: Whether the process can compute on the CPU what kernels would write to small
            tensors (`process.follow_values`).
        tell: Called with lines on the progress of a compilation.

    Raises:
        NbmemError: The engine cannot run here, or there is no such card.
    """
    cards = find_cards(gpu)
    site = require()
    needed = {build.architecture(card.capability) for card in cards}
    built = cache.ensure(site, tuple(sorted(needed)), tell=tell)
    before = process.without(dict(os.environ), cache.root())
    before.pop(VISIBLE, None)  # it is about the real cards
    follower = built / build.VALUES
    names = (built / build.PRELOAD).read_text().split()
    return before | {
        process.PRELOADED: _before(before.get(process.PRELOADED), *(built / one for one in names)),
        process.SEARCHED: _before(before.get(process.SEARCHED), compilers_own(site, built)),
        process.ENGINE: TORCH,
        process.GPU: ",".join(card.key for card in cards),
        "STANDIN_SITE": str(site),
        STATE: str(state_file(cache.root() / "processes")),
        process.VALUES: str(follower) if values and follower.exists() else "",
        "TRITON_LIBCUDA_PATH": str(built),
    }


def _before(others: str | None, *paths: Path) -> str:
    return ":".join([*map(str, paths), *([others] if others else [])])


def relaunch(gpu: str | Card | tuple[Card, ...], command: Sequence[str]) -> NoReturn:
    """Replace this process by a Python on these cards.

    Args:
        gpu: As for `environment`.
        command: Python's arguments.

    Raises:
        NbmemError: The engine cannot run here, or there is no such card.
    """
    found = environment(gpu)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(sys.executable, [sys.executable, *command], found)  # noqa: S606 - our own Python
