"""Find how a loop goes on that calls no module.

Such a loop has no steps: tensors are made by functions, by operators or by a CUDA graph that is
replayed. Its iterations are found as the shortest run of requests that was repeated up to the
failed one.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import without_shape
from nbmem.report.analysis.oom.continuations.repeated_step import (
    SamePlace,
    continued,
    requests_before,
)
from nbmem.report.ledger.allocation_facts import NO_NAME

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.continuations.continuation import Continuation
    from nbmem.report.analysis.oom.continuations.repeated_step import Requests
    from nbmem.report.analysis.oom.failed_request import FailedRequest
    from nbmem.report.ledger.card_ledger import CardLedger

REPEATED = 3
"""Equal iterations in a row that show a loop."""
LONGEST = 4_096
"""Requests and frees of one iteration."""
PHASES = ("", "load", "input", "inference")
"""Phases in which a program's own loop can be. Within the others, equal layers of a model look like
one: their activations, gradients and states are kept one after the other, too."""
_ATTRIBUTE = re.compile(r"\]\.[\w.]+$")


def repeated_loop(case: FailedRequest) -> Continuation | None:
    """Return what follows if the loop goes on as its last iterations did.

    None if the failed request is inside a module, nothing is repeated before it, or nothing with a
    name grows.
    """
    if case.refusal is None or case.refusal.layer is not None:
        return None
    requests = requests_before(case)
    if requests.phase[-1] not in PHASES:
        return None
    period = _period(requests)
    if period is None:
        return None
    last = len(requests.row) - 1
    found = continued(case, requests, SamePlace(last - period, (REPEATED - 1) * period - 1), 0)
    grows = found.slope and all(_is_element(case.card_ledger, row) for row in found.grown)
    return replace(found, loop=True) if grows else None


def _is_element(card_ledger: CardLedger, row: int) -> bool:
    """Return whether an allocation is a variable or an element of one.

    What a graph keeps belongs to the backward that will free it. What nobody can name may be a part
    of a model that is being made, and so may an attribute of an element (`layers[...].weight`).
    """
    name = int(card_ledger.names[row])
    if name == NO_NAME or card_ledger.category[row] == Category.ACTIVATIONS:
        return False
    return _ATTRIBUTE.search(without_shape(card_ledger.texts[name])) is None


def _period(requests: Requests) -> int | None:
    """Return the length of an iteration; None if the last ones were not equal.

    All of them are in the phase of the failed request.
    """
    last = len(requests.code) - 1
    begin = int(np.searchsorted(requests.phase_index, requests.phase_index[last]))
    longest = min(LONGEST, (last + 1 - begin) // REPEATED)
    same = np.flatnonzero(requests.code[last - longest : last] == requests.code[last])
    for period in (longest - same)[::-1].tolist():
        compared = (REPEATED - 1) * period
        end = last + 1
        now, before = (requests.code[at - compared : at] for at in (end, end - period))
        if np.array_equal(now, before):
            return int(period)
    return None
