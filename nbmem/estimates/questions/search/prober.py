"""Run the values of a search, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.units import format_bytes
from nbmem.estimates.runs.probe_run import Reply, Request

if TYPE_CHECKING:
    from nbmem.estimates.questions.search.value_search import Verdict
    from nbmem.report.estimate_results import Probe
    from nbmem.virtual.cards import Card

    Ask = Callable[[Request], Reply]
    Tell = Callable[[str], None]


class Prober:
    """A runner of values that runs each value once and keeps its probe.

    Args:
        ask: Runs a request and returns the reply.
        card: On which card.
        margin: Bytes of it to keep free.
        tell: Called with a line of text after every run.
        remedies: Keys of remedies under which it runs.
        compiled: Plan what the program compiles.
        parts: In how many micro-batches the remedies cut a batch; a value is a multiple of it.

    Attributes:
        card: On which card.
        margin: Bytes of it to keep free.
        compiled: Whether what the program compiles is planned.
        parts: In how many micro-batches the remedies cut a batch.
        probes: By value.
        scaled: Replays of their requests at other values.
        on_probe: Called after each run.
        left: Returns what is known of the time that is left, after each run; or "".
        ended: When each run ended, in seconds of the performance counter.
    """

    def __init__(  # noqa: PLR0913 - the question's parts
        self,
        ask: Ask,
        card: Card,
        margin: int,
        tell: Tell,
        remedies: tuple[str, ...] = (),
        *,
        compiled: bool = False,
        parts: int = 1,
    ) -> None:
        self.probes: dict[int, Probe] = {}
        self.on_probe: Callable[[], None] = lambda: None
        self.left: Callable[[], str] = lambda: ""
        self.ended: list[float] = []
        self._ask = ask
        self.card, self.margin, self._tell = card, margin, tell
        self._remedies, self.compiled, self.parts = remedies, compiled, parts
        from nbmem.estimates.questions.search.scaled_runs import ScaledRuns  # imports numpy

        self.scaled = ScaledRuns(card)

    def __call__(self, value: int) -> Probe:
        """Run a value and return its probe."""
        if value not in self.probes:
            request = Request(
                card=self.card,
                margin=self.margin,
                value=value // self.parts,
                remedies=self._remedies,
                compiled=self.compiled,
            )
            reply = self._ask(request)
            found = self.probes[value] = reply.probe
            self.scaled.add(value, reply)
            self.ended.append(CLOCK.perf_counter())
            how = " compiled" if self.compiled else ""
            self._tell("; ".join(filter(None, [f"{value}{how}: {_how(found)}", self.left()])))
            self.on_probe()
        return self.probes[value]

    def under(self, key: str) -> Prober:
        """Return a prober of the same program under one more remedy."""
        remedies = (*self._remedies, key)
        other = Prober(
            self._ask, self.card, self.margin, self._tell, remedies, compiled=self.compiled
        )
        other.left, other.ended = self.left, self.ended
        return other

    def least(self, value: int) -> int:
        """Return the process bytes that a run value cannot do without.

        They are its tensors and its context. Torch may release every cached segment, but nothing
        that is in use.
        """
        found = self.probes[value]
        return found.allocated + found.process - found.reserved

    def verdict(self, value: int) -> tuple[Verdict, int]:
        """Run a value; return its verdict and the bytes that it needs.

        The bytes are 0 where the program fails for another reason than memory.
        """
        found = self(value)
        if found.failure is not None and found.failure.kind == "other":
            return "fails", 0
        return "fits" if found.fits else "full", found.wanted


def _how(found: Probe) -> str:
    if found.failure is not None and found.failure.kind == "other":
        return f"fails, {found.failure.text}"
    verdict = "fits" if found.fits else "does not fit"
    return f"{format_bytes(found.need)} {verdict}"
