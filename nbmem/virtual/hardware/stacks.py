"""Stacks of the memory history, captured by torch and symbolized lazily.

A stack has frames of Python, of TorchScript and, if requested, of C++. The virtual card's own part
is left out. Its C++ frames begin where torch's dispatcher calls it. The frames inside of that on a
real card, the kernels and the allocator, do not run here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._C._profiler import CapturedTraceback, gather_traceback, symbolize_tracebacks

from nbmem.core.session.source_files import with_slashes

if TYPE_CHECKING:
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
"""Files of torch that are in stacks between a program and the virtual card, but not a real one."""
_ASKED = "PyInterpreterVTable::dispatch("
"""The C++ function by which torch's dispatcher calls Python."""
_CALLS_ENGINE = "_engine_run_backward"
_ENGINE_THREAD = "torch::autograd::Engine::thread_main("
_NO_FILE = "??"
_C_FILES = (".c", ".cc", ".cpp", ".h", ".hpp")
AT_ONCE = 4_096
"""Stacks that torch names in one call: each is a list of its frames until it is judged."""


def capture_stack(*, cpp: bool) -> CapturedTraceback:
    """Capture the current stack, with C++ frames if `cpp` is set."""
    return gather_traceback(True, True, cpp)


def symbolized(stacks: Iterable[CapturedTraceback]) -> Iterator[list[Frame]]:
    """Yield stacks symbolized as torch does, innermost frame first.

    Equal stacks are one list, and equal frames one dictionary.
    """
    known = _FrameCache()
    stacks = iter(stacks)
    while some := list(islice(stacks, AT_ONCE)):
        yield from known.of_the_program(symbolize_tracebacks(some))


class _FrameCache:
    """A cache of classified frames and filtered stacks; loops repeat them."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int], tuple[Frame, _FrameKind]] = {}
        self._stacks: dict[tuple[int, ...], list[Frame]] = {}

    def of_the_program(self, stacks: list[list[Frame]]) -> Iterator[list[Frame]]:
        """Yield the program's own frames of each stack.

        torch makes one dictionary of equal frames in one call. So the dictionary's id identifies
        the frame for as long as the stacks of that call are held.
        """
        alike: dict[tuple[int, ...], list[Frame]] = {}
        for frames in stacks:
            ids = tuple(map(id, frames))
            found = alike.get(ids)
            if found is None:
                found = alike[ids] = self._of_one(frames)
            yield found

    def _of_one(self, frames: list[Frame]) -> list[Frame]:
        judged = [self._judge(frame) for frame in frames]
        key = tuple([id(frame) for frame, _ in judged])
        if key not in self._stacks:
            self._stacks[key] = _of_the_program(judged)
        return self._stacks[key]

    def _judge(self, frame: Frame) -> tuple[Frame, _FrameKind]:
        key = frame["filename"], frame["name"], frame["line"]
        if key not in self._frames:
            self._frames[key] = frame, _judge(frame["name"], frame["filename"])
        return self._frames[key]


class _FrameKind(NamedTuple):
    """The classification of a frame by its function name and its file.

    Attributes:
        calls_engine: Whether it is Python's call of autograd's engine.
        asked: Whether torch's dispatcher calls the virtual card here.
        begins_thread: Whether it is the outermost function of an engine thread.
        programs: Whether it exists on a real card, too.
        cpp: Whether it is a C++ frame.
    """

    calls_engine: bool
    asked: bool
    begins_thread: bool
    programs: bool
    cpp: bool


def _judge(name: str, file: str) -> _FrameKind:
    slashed = with_slashes(file)
    return _FrameKind(
        name == _CALLS_ENGINE,
        _ASKED in name,
        _ENGINE_THREAD in name,
        not file.startswith(_OURS) and not any(part in slashed for part in _BETWEEN),
        file == _NO_FILE or file.endswith(_C_FILES),
    )


def _of_the_program(frames: list[tuple[Frame, _FrameKind]]) -> list[Frame]:
    """Drop the virtual card's frames, and in backward Python's callers.

    In backward only the frames of the engine's thread remain.

    A real card runs backward in a thread of the engine, whose stack begins at the engine's call.
    Python's frames are merged with those of C++ by their order, so each is judged by its file.
    (torch 2.13, Python 3.11: frames without a match come last.)
    """
    inner = list(takewhile(lambda known: not known[1].calls_engine, frames))
    begin = next((n + 1 for n, (_, is_) in enumerate(inner) if is_.asked), len(inner))
    end = next((n + 1 for n, (_, is_) in enumerate(inner) if is_.begins_thread), len(inner))
    return [
        frame
        for n, (frame, is_) in enumerate(inner[:end])
        if is_.programs and (n >= begin or not is_.cpp)
    ]
