"""Find the largest value of a variable under an option of a plan.

The result is exact to within a small part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.estimates.questions.predicted_savings import largest
from nbmem.estimates.questions.value_search import Search

if TYPE_CHECKING:
    from nbmem.estimates.questions.fit import Prober
    from nbmem.report.estimate_results import Option

LOOSE = 0.02
"""Part by which a remedy's largest batch may be too small: a plan compares, `fit` is exact."""


def largest_of(option: Option, value: int, prober: Prober, parts: int, room: int) -> Search:
    """Search for an option's largest value and return the search.

    Args:
        option: One that was run, with `value`.
        value: The program's own.
        prober: Runs values under the option.
        parts: Into how many micro-batches it cuts a batch.
        room: Bytes that are available.
    """
    assert option.probe is not None  # noqa: S101 - the caller checked
    if option.probe.ran:
        prober.probes[value] = option.probe
    guess = largest(option.probe, room)
    search = Search(
        test=lambda tried: prober.verdict(tried, parts),
        room=room,
        low=parts,
        step=parts,
        loose=LOOSE,
        least=prober.least,
        first_guess=None if guess is None else guess * parts,
    )
    search.run(value // parts * parts or parts)
    return search
