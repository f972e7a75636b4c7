"""Find out whether this process runs on the stand-in."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

ENGINE = "NBMEM_ENGINE"
"""Set by a launch, so that nbmem knows that the card is none. Without it the stand-in passes for a
card: the tests ask it what nbmem would see on one."""
GPU, VALUES = "STANDIN_GPU", "STANDIN_VALUES"
VARIABLES = (
    *(ENGINE, GPU, VALUES, "STANDIN_COUNT", "STANDIN_SITE", "STANDIN_STATE", "STANDIN_TOTAL"),
    *("STANDIN_OTHERS", "TRITON_LIBCUDA_PATH"),
)
"""What the launch sets beside the two lists of libraries."""
WORK_AREAS = (
    "Work areas of convolutions are what cuDNN names for a card that is described to it. Of "
    "Hopper's own kernels they are too small (a ResNet-50 reserved 2.7% less): --engine rules has "
    "a rule for them."
)
PRELOADED, SEARCHED = "LD_PRELOAD", "LD_LIBRARY_PATH"


@cache
def _is_loaded() -> bool:
    """Return whether the stand-in's driver is loaded in this process."""
    return hasattr(ctypes.CDLL(None), "standin_handle")


def active() -> bool:
    """Return whether this process runs on the stand-in."""
    return ENGINE in os.environ and os.name == "posix" and _is_loaded()


def begin(card: str, total: int, others: int) -> None:
    """Put one card into this process, which has used none yet.

    The environment is read once, so that a program may change it afterwards.

    Args:
        card: Its key.
        total: Another size of it, in bytes.
        others: Bytes that others hold of it.
    """
    os.environ |= {GPU: card, "STANDIN_TOTAL": str(total), "STANDIN_OTHERS": str(others)}
    os.environ["STANDIN_STATE"] += f".{os.getpid()}"
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # it is about the real cards
    ctypes.CDLL(None).standin_begin()
    Path(os.environ["STANDIN_STATE"]).unlink()  # it is mapped, and no other process looks in


@cache
def follow_values() -> None:
    """Compute on the CPU what torch's kernels would write (values.cpp).

    It is done where tensors are small. torch must be imported before. Nothing happens in a process
    that was not started for it.
    """
    path = os.environ.get(VALUES)
    if path and active():
        ctypes.CDLL(path).standin_follow()


def cards() -> tuple[str, ...]:
    """Return the keys of the cards that this process is on; empty off it."""
    return tuple(os.environ[GPU].split(",")) if active() else ()


def limits() -> list[str]:
    """Return sentences on what this process's card has not as a real one."""
    graphs = getattr(ctypes.CDLL(None), "standin_graphs", None) if active() else None
    return [WORK_AREAS] if graphs is not None and graphs() else []


def without(environment: dict[str, str], built: Path) -> dict[str, str]:
    """Return an environment without what a launch has put into it.

    Args:
        environment: That of a process on the stand-in, or of any other.
        built: The folder of compiled stand-ins.
    """
    found = {name: value for name, value in environment.items() if name not in VARIABLES}
    for name in (PRELOADED, SEARCHED):
        parts = [one for one in found.get(name, "").split(":") if one]
        kept = [one for one in parts if not Path(one).is_relative_to(built)]
        if len(kept) < len(parts):
            found[name] = ":".join(kept)
    return {k: v for k, v in found.items() if v or k not in (PRELOADED, SEARCHED)}
