"""Stacks as torch's memory history shows them: taken by torch, named when they are asked for.

A stack is taken of Python, of TorchScript and, where it was asked for, of C++. The virtual card's
own part is left out. Its C++ frames begin where torch's dispatcher asks it: what comes inside of
that on a real card, the kernels and the allocator, does not run here.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch._C._profiler import CapturedTraceback, gather_traceback, symbolize_tracebacks

from nbmem.core.sources import with_slashes

if TYPE_CHECKING:
    from collections.abc import Iterable

    Frame = dict[str, Any]

_OURS = (
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[2] / "allocator"),
)
_BETWEEN = (
    "torch/_ops.py",
    "torch/library.py",
    "torch/_library/",
    "torch/utils/_python_dispatch.py",
    "torch/utils/_contextlib.py",
    "PythonFallbackKernel.cpp",
)
"""Files of torch that stand between a program and the virtual card, but not before a real one."""
_ASKED = "PyInterpreterVTable::dispatch("
"""The C++ function by which torch's dispatcher calls Python."""
_CALLS_ENGINE = "_engine_run_backward"
_ENGINE_THREAD = "torch::autograd::Engine::thread_main("
_NO_FILE = "??"
_C_FILES = (".c", ".cc", ".cpp", ".h", ".hpp")


def take(*, cpp: bool) -> CapturedTraceback:
    """The stack from here on, with the frames of C++ if they are asked for."""
    return gather_traceback(True, True, cpp)


def named(stacks: Iterable[CapturedTraceback]) -> list[list[Frame]]:
    """Stacks as torch writes them, each with its innermost frame first."""
    return [_of_the_program(frames) for frames in symbolize_tracebacks(list(stacks))]


def _of_the_program(frames: list[Frame]) -> list[Frame]:
    """Without the virtual card's frames, and in backward those of the engine's thread alone.

    A real card runs backward in a thread of the engine, whose stack begins at the engine's call.
    Python's frames are put among those of C++ by their order (torch 2.13, Python 3.11: those that
    find no place come last), so each is judged by its file.
    """
    inner = list(takewhile(lambda frame: frame["name"] != _CALLS_ENGINE, frames))
    names = [frame["name"] for frame in inner]
    begin = next((n + 1 for n, name in enumerate(names) if _ASKED in name), len(inner))
    end = next((n + 1 for n, name in enumerate(names) if _ENGINE_THREAD in name), len(inner))
    return [
        frame
        for n, frame in enumerate(inner[:end])
        if _is_programs(frame["filename"]) and (n >= begin or not _is_cpp(frame["filename"]))
    ]


def _is_cpp(file: str) -> bool:
    return file == _NO_FILE or file.endswith(_C_FILES)


def _is_programs(file: str) -> bool:
    slashed = with_slashes(file)
    return not file.startswith(_OURS) and not any(part in slashed for part in _BETWEEN)
