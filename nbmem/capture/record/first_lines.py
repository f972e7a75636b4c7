"""Keep the user's lines of large allocations.

A recording without `--stacks` has stacks of its first allocations only (allocator_history.py).
Nothing else may read such a part as the stacks of all, so only these lines remain of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbmem.capture.interpreter.notebook_cells import lines_of, running_shell
from nbmem.capture.interpreter.variable_reads import VariableReads
from nbmem.core.session.events import Action, Frame, Stack
from nbmem.core.session.session import MAX_LINES, DeviceTrace
from nbmem.core.session.source_files import TOP_LEVEL, is_users, with_slashes
from nbmem.core.units import MIB

MIN_BYTES = MIB
"""Bytes of an allocation whose lines are kept."""
MAX_ALLOCATIONS = 2_000
"""Allocations of a card whose lines are kept, the largest ones."""
CALLERS = 3
"""Lines of the user that are kept of a stack, the innermost first."""
OUTER = 9
"""Lines of the user around these that are kept for the variables of their functions."""
LONGEST = 200
"""Characters of a line's text that are kept."""
_CALL = ("_call_impl", "_wrapped_call_impl")
_MAKING = ("__init__", "from_pretrained", "load_state_dict", "_apply")
"""Functions of libraries that make the tensors of an object, or move them."""


def large_allocation_lines(
    devices: Sequence[DeviceTrace], stacks: Sequence[Stack], files: Mapping[str, str]
) -> dict[str, Any]:
    """Return the lines of large allocations, as a fact of the session.

    Keys: `frames` (file, line, function and text of each); `begins` (the first line of each frame's
    function, 0 if it is not known: each module's function is `forward`); `stacks` (whether an
    object of a library made it, then indices of frames); `outer` (of each stack, the frames around
    these); `rows` (card, event, stack); `unread` (a frame, and the variables that no line from
    there on reads).

    Args:
        devices: The cards with their events.
        stacks: The stacks to which the events refer, with numbered cells.
        files: The files of cells, from `files_of_cells`.
    """
    frames: dict[Frame, int] = {}
    kept: dict[int, int] = {}
    found: list[list[Any]] = []
    outer: list[list[int]] = []
    rows: list[list[int]] = []
    for device in devices:
        events = device.events
        large = np.flatnonzero((events.action == Action.ALLOC) & (events.size >= MIN_BYTES))
        large = large[events.stack[large] >= 0]
        largest = np.sort(large[np.argsort(-events.size[large], kind="stable")[:MAX_ALLOCATIONS]])
        for event, stack in zip(largest.tolist(), events.stack[largest].tolist(), strict=True):
            if stack not in kept:
                kept[stack] = len(found)
                found.append(_reduced(stacks[stack], frames))
                outer.append(_outer(stacks[stack], frames))
            rows.append([device.info.index, event, kept[stack]])
    if not rows:
        return {}
    texts = {file: lines_of(file, files) for file in {frame.file for frame in frames}}
    described = [
        [frame.file, frame.line, frame.function, _text(texts[frame.file], frame.line)]
        for frame in frames
    ]
    reads = {file: VariableReads(lines) for file, lines in texts.items() if len(lines) < MAX_LINES}
    return {
        "lines": {
            "frames": described,
            "begins": [
                reads[frame.file].function_at(frame.line) if frame.file in reads else 0
                for frame in frames
            ],
            "stacks": found,
            "outer": outer,
            "rows": rows,
            "unread": [*_unread(frames, reads)],
        }
    }


def without_stacks(device: DeviceTrace) -> DeviceTrace:
    """Return a card's trace whose events and blocks have no stacks."""
    events, blocks = device.events, device.end.blocks
    none = np.full(len(events), -1, np.int64)
    no_block = np.full(len(blocks), -1, np.int64)
    end = replace(device.end, blocks=replace(blocks, stack=no_block))
    return replace(device, events=replace(events, stack=none), end=end)


def _reduced(stack: Stack, frames: dict[Frame, int]) -> list[Any]:
    own = [frame for frame in stack if is_users(frame)][:CALLERS]
    inner = stack[: stack.index(own[0])] if own else stack
    module = any(map(_is_of_module, inner))
    return [module, *(frames.setdefault(frame, len(frames)) for frame in own)]


def _is_of_module(frame: Frame) -> bool:
    """Return whether a frame runs, makes or moves a module of a library.

    A class of the user's calls the forward of torch's as `super().forward(x)`.
    """
    file = with_slashes(frame.file)
    return (
        frame.function in _MAKING
        or (frame.function in _CALL and file.endswith("nn/modules/module.py"))
        or (frame.function == "forward" and "/nn/modules/" in file)
    )


def _outer(stack: Stack, frames: dict[Frame, int]) -> list[int]:
    own = [frame for frame in stack if is_users(frame)][CALLERS:]
    return [frames.setdefault(frame, len(frames)) for frame in own[-OUTER:]]


def _unread(
    frames: Mapping[Frame, int], files: Mapping[str, VariableReads]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield frames with the variables that are not read from there on.

    A later cell may read any variable of a notebook.
    """
    in_notebook = running_shell() is not None
    for frame, index in frames.items():
        at_top = frame.function.startswith(TOP_LEVEL)
        if frame.file not in files or (at_top and in_notebook):
            continue
        names = files[frame.file].unread(frame.line, at_top=at_top)
        if names:
            yield index, names


def _text(lines: Sequence[str], line: int) -> str:
    return lines[line - 1].strip()[:LONGEST] if 0 < line <= len(lines) else ""
