"""Split a tensor's name into its holder, its shape and its dtype."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.session.tensor_names import VIEW, saver_of

if TYPE_CHECKING:
    from nbmem.report.exploration import Lifetime

_TAIL = re.compile(r"\s(\((?:\d+(?:,\s?)?)*(?:\d+)?\))(?:\s([a-z]+\d*\w*))?$")
"""` (64, 3, 7, 7) float32` at the end of a name, as the probes write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a tensor's name.

    Attributes:
        name: Without shape and dtype, but with a suffix for a view; None if unnamed.
        group: Its module or variable, else the phase that allocated it.
        shape: `(64, 3, 7, 7)`, or None.
        dtype: `float32`, or None.
    """

    name: str | None
    group: str
    shape: str | None
    dtype: str | None


def parts_of(life: Lifetime) -> Parts:
    """Split an allocation's name; group an unnamed one by its phase.

    The phase is the one in which it was allocated.
    """
    if life.name is None:
        where = f"unnamed, born in {life.born_in}" if life.born_in else "unnamed"
        return Parts(name=None, group=where, shape=None, dtype=None)
    whole = life.name.removesuffix(VIEW)
    found = _TAIL.search(whole)
    name = whole[: found.start()] if found else whole
    return Parts(
        name=name + life.name[len(whole) :],
        group=_holder(name),
        shape=found[1] if found else None,
        dtype=found[2] if found else None,
    )


def _holder(name: str) -> str:
    """Return the module or variable that a name belongs to.

    `model.conv` for `model.conv.weight.grad`; `optimizer` for `optimizer.state[0]['step']`.
    """
    if saver := saver_of(name):
        return saver
    path = name.removesuffix(".grad")
    holder, dot, _ = path.rpartition(".")
    if "[" in holder or not dot:
        holder = path.partition("[")[0]
        return holder.rpartition(".")[0] or holder
    return holder
