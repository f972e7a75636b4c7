"""Map allocations to phases and to the called modules in their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.tensor_names import STEP, is_graph_name, module_in_name, without_shape
from nbmem.report.ledger.allocation_facts import NO_NAME

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.categories import Category
    from nbmem.report.ledger.card_ledger import CardLedger

NO_MODULE = -1


class Passes:
    """Allocations by phase and by the outermost called module in their names.

    Args:
        ledger: The card's ledger.

    Attributes:
        modules: Paths of the called modules.
        of: Index in `modules` of each allocation's module; NO_MODULE without one.
    """

    def __init__(self, ledger: CardLedger) -> None:
        self._ledger = ledger
        calls = ledger.trace.calls
        seen = [] if calls is None else np.unique(calls.name).tolist()
        called = [
            name for name in (ledger.session.names[i] for i in seen) if not name.endswith(STEP)
        ]
        self.modules = tuple(sorted({outermost(called, name) for name in called}))
        numbers = {name: number for number, name in enumerate(self.modules)}
        by_name = np.full(len(ledger.texts) + 1, NO_MODULE, np.int64)
        for index in np.unique(ledger.names).tolist():
            if index != NO_NAME:
                module = outermost(self.modules, _path(without_shape(ledger.texts[index])))
                by_name[index] = numbers.get(module, NO_MODULE)
        self.of: Ints = by_name[ledger.names]
        self._order = np.argsort(ledger.born_in, kind="stable")
        self._phases = ledger.born_in[self._order]

    def made_in(self, phase: int) -> Ints:
        """Return the allocations of a phase, in their order."""
        first, last = np.searchsorted(self._phases, [phase, phase + 1])
        return self._order[first:last]

    def made_by_modules(self, phase: int, *categories: Category) -> Ints:
        """Return the allocations of some categories that modules made in a phase."""
        rows = self.made_in(phase)
        found: Ints = rows[
            np.isin(self._ledger.category[rows], categories) & (self.of[rows] != NO_MODULE)
        ]
        return found


def outermost(names: Iterable[str], path: str) -> str:
    """Return the outermost of some modules that a path leads through, or ""."""
    return min((n for n in names if f"{path}.".startswith(f"{n}.")), key=len, default="")


def _path(name: str) -> str:
    return module_in_name(name) if is_graph_name(name) else name
