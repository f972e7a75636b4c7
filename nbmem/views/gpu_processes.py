"""Render the processes on the cards as plain text, one line for each.

Notes name unknown figures.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmem.core.units import MIB, format_bytes
from nbmem.views.grid import in_columns
from nbmem.views.markup import one_line

if TYPE_CHECKING:
    from nbmem.core.gpu_processes import GpuProcess, OccupiedCard

MAX_HELD = 3
"""Number of categories in a kernel's line."""
_WORTH_SAYING = 64 * MIB
"""Unattributed bytes below this are the driver's own rounding."""
GONE = (
    "Where no process has the number, it has ended and the driver still holds its memory, or it "
    "lives in another container or on the host, whose names are hidden here."
)
HIDDEN = (
    "Nobody is named for {} of card {}: a container, MIG or the driver hides whose they are; "
    "nvidia-smi on the host, as root, may say."
)
MIG = "Card {} is cut into slices (MIG): the driver tells processes and their bytes only to root."
MPS = (
    "An MPS server runs on card {}: programs under it share one context, and the driver may count "
    "it for the server."
)


SHARED = (
    "Card {} has no memory of its own and shares the host's: total and free bytes are the "
    "machine's, and what is in use is what all of its programs use."
)
NO_BYTES = "Card {}: NVML does not say how much memory it has, or how much is in use."
WDDM = (
    "Card {}: Windows manages its memory (WDDM), so the driver does not say what each process uses."
)


def render_gpu_processes(cards: Sequence[OccupiedCard]) -> str:
    """Render every card with its processes and its notes.

    There is one note for each reason that hides a process.
    """
    parts, notes = [], []
    for card in cards:
        parts.append(_card(card))
        notes += _notes(card)
    if any(one.gone for card in cards for one in card.neighbours):
        notes.insert(0, GONE)
    if not cards:
        return "NVML sees no card here."
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes)]).rstrip()


def _card(card: OccupiedCard) -> str:
    head = f"{card.index}  {card.name}: {_bytes(card)}"
    if not card.neighbours:
        return head
    table = [("pid", "user", "used", "what"), *(_row(one) for one in card.neighbours)]
    return "\n".join([head, textwrap.indent(in_columns(table, left={1, 3}), "  ")])


def _bytes(card: OccupiedCard) -> str:
    if card.total is None or card.used is None:
        return "bytes not said"
    total, free = format_bytes(card.total), format_bytes(card.total - card.used)
    shared = ", shared with the host" if card.shared else ""
    return f"{format_bytes(card.used)} of {total} in use, {free} free{shared}"


def _row(one: GpuProcess) -> tuple[str, str, str, str]:
    used = "not said" if one.used is None else format_bytes(one.used)
    return str(one.pid), one_line(one.user or "?"), used, describe_process(one)


def describe_process(one: GpuProcess) -> str:
    """Describe a process: `train.ipynb (this process); busy; ...`.

    It names the notebook or the command, and the kernel's own report of its memory.
    """
    if one.gone:
        return "no such process"
    name = one_line(one.notebook or one.command or "hidden")
    if one.pid == os.getpid():
        name += " (this process)"
    parts = [name]
    if one.busy is not None:
        parts.append("busy" if one.busy else "idle")
    if one.status is not None:
        status = one.status
        held = ", ".join(f"{name} {format_bytes(size)}" for name, size in status.held[:MAX_HELD])
        cell = f"after {one_line(status.cell)} " if status.cell else ""
        tensors, reserved = format_bytes(status.allocated), format_bytes(status.reserved)
        parts.append(f"{cell}{tensors} allocated of {reserved} reserved")
        parts += [f"in the last trace {held}"] if held else []
    return "; ".join(parts)


def _notes(card: OccupiedCard) -> list[str]:
    sentences = ((MIG, card.mig), (SHARED, card.shared), (NO_BYTES, card.total is None))
    found = [sentence.format(card.index) for sentence, true in sentences if true]
    if card.wddm and any(one.used is None for one in card.neighbours):
        found.append(WDDM.format(card.index))
    if any("nvidia-cuda-mps-server" in (one.command or "") for one in card.neighbours):
        found.append(MPS.format(card.index))
    if card.unattributed > _WORTH_SAYING and any(one.used is None for one in card.neighbours):
        return found
    if card.unattributed > max(_WORTH_SAYING, (card.total or 0) // 50) and not card.mig:
        found.append(HIDDEN.format(format_bytes(card.unattributed), card.index))
    return found
