"""Name unobserved allocations by the call or module that made them.

No probe reads temporaries before they are freed: an optimizer's lists within a step, or a result
that no backward reads. Their position in the order of allocations is known. It is inside a call
with a recorded begin and end, or near a tensor that a graph has named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import NOT_KNOWN
from nbmem.core.session.tensor_names import (
    MADE,
    STEP,
    TEMPORARY,
    is_graph_name,
    module_in_name,
    module_of_parameter,
)
from nbmem.report.ledger.observations import NO_NAME
from nbmem.report.ledger.phase_map import CALLS, NOWHERE, PhaseMap

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Codes, Ints, Mask
    from nbmem.core.session.session import Calls
    from nbmem.report.ledger.allocation_facts import Facts

    _Columns = tuple[Ints, Ints, Ints]

NEAR = 4
"""Most allocations between a row and its neighbour: a kernel's scratch, or a module's own steps."""
_GRADIENT = re.compile(r"([^\s\[]+\.[^.\s]+)\.grad ")
"""The parameter in the name of its gradient."""


def step_temporaries(
    allocations: Allocations, born_in: Ints, phases: PhaseMap, calls: Calls, texts: Sequence[str]
) -> Mask:
    """Select what an optimizer's step allocates and frees before it returns.

    If a step has a closure, forwards and backwards in it have their own phases.
    """
    begins, ends, _ = _steps(calls, texts)
    own = np.flatnonzero(phases.named(born_in, "optimizer"))
    at = np.searchsorted(ends, allocations.allocated_at[own], side="right")
    own, at = own[at < len(ends)], at[at < len(ends)]
    inside = (begins[at] != NOT_KNOWN) & (begins[at] <= allocations.allocated_at[own])
    found = np.zeros(len(allocations), bool)
    found[own] = inside & (allocations.freed[own] < ends[at])
    return found


def _steps(calls: Calls, texts: Sequence[str]) -> _Columns:
    known = np.unique(calls.name).tolist()
    selected = np.isin(calls.name, [i for i in known if texts[i].endswith(STEP)])
    return calls.first[selected], calls.last[selected], calls.name[selected]


class AllocationSites:
    """Names allocations after the place where they were made.

    Args:
        facts: The facts of each allocation.
        names: Index of each one's name, NO_NAME if it has none.
        texts: The texts that these indices point into.
        category: Category of each allocation, as a number.
        calls: The calls of modules and optimizers; None where none were recorded.
    """

    def __init__(
        self,
        facts: Facts,
        names: Ints,
        texts: Sequence[str],
        category: Codes,
        calls: Calls | None,
    ) -> None:
        self._facts, self._names, self._texts, self._category = facts, names, texts, category
        self._calls = None if calls is None else _Calls(calls, texts, facts.phases)

    def name(self, row: int) -> str | None:
        """Return a name such as `temporary of adamw.step()`, or None."""
        facts = self._facts
        phase = int(facts.born_in[row])
        if phase == NOWHERE:
            return None
        kind = str(facts.phases.names[phase])
        where = None
        if kind in (*CALLS, "backward"):
            path = self._nearby_module(row)
            where = None if path is None else f"near {path}"
        if where is None and self._calls is not None:
            where = self._calls.where(int(facts.allocations.allocated_at[row]), kind, phase)
        if where is None:
            return None
        if facts.within_one_phase[row]:
            return f"{TEMPORARY}{where}"
        return f"{MADE}by {where[3:]}" if where.startswith("of ") else f"{MADE}{where}"

    def _nearby_module(self, row: int) -> str | None:
        """Return the module of a named allocation close to a row in its phase.

        Up to NEAR allocations before the row are searched first, then as many after it.
        """
        born_in = self._facts.born_in
        for step in (-1, 1):
            for at in range(row + step, row + step * (NEAR + 1), step):
                if not 0 <= at < len(born_in) or born_in[at] != born_in[row]:
                    break
                index = int(self._names[at])
                path = None if index == NO_NAME else self._module(at, self._texts[index])
                if path is not None:
                    return path
        return None

    def _module(self, row: int, name: str) -> str | None:
        if is_graph_name(name):
            return module_in_name(name)
        found = _GRADIENT.match(name) if self._category[row] == Category.GRADIENTS else None
        return module_of_parameter(found[1]) if found else None


class _Calls:
    """Intervals of module calls and of optimizer steps."""

    def __init__(self, calls: Calls, texts: Sequence[str], phases: PhaseMap) -> None:
        self._steps = _steps(calls, texts)
        modules = ~np.isin(calls.name, self._steps[2])
        self._modules = calls.first[modules], calls.last[modules], calls.name[modules]
        self._texts, self._phases = texts, phases

    def where(self, born: int, kind: str, phase: int) -> str | None:
        """Describe the call that an allocation lies in, or the calls beside it."""
        if kind == "backward":
            return "of backward()"
        first, last = self._phases.bounds(phase)
        if kind == "optimizer":
            return self._place(self._steps, born, first, last) or "of an update"
        if kind in CALLS:
            return self._place(self._modules, born, first, last)
        return self._coming(born) if kind == "input" else None

    def _place(
        self, calls: tuple[Ints, Ints, Ints], born: int, first: int, last: int
    ) -> str | None:
        """Describe a place inside a call, before the next or after the last."""
        begins, ends, names = calls
        at = int(np.searchsorted(ends, born, side="right"))
        if at < len(ends):
            known, name = begins[at] != NOT_KNOWN, self._texts[names[at]]
            if known and begins[at] <= born:
                return f"of {name}"  # it may extend beyond the phase: a closure runs inside it
            if (begins[at] if known else ends[at] - 1) < last:
                return f"{'before' if known else 'near'} {name}"
        if at and ends[at - 1] > first:
            return f"after {self._texts[names[at - 1]]}"
        return None

    def _coming(self, born: int) -> str | None:
        """Describe an allocation as before the next module call.

        Returns None if the start of that call is unknown or comes before the allocation.
        """
        begins, ends, names = self._modules
        at = int(np.searchsorted(ends, born, side="right"))
        if at == len(ends) or begins[at] < born:
            return None
        return f"before {self._texts[names[at]]}"
