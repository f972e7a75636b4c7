"""Run one program under remedies and record what is known of each.

A plan runs the remedies that can change its answer. The first run's ledger gives each remedy a
predicted saving, and a lower bound of its memory. Options that are only predicted are labelled.

The largest value of a variable under an option is found as `fit` finds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.units import format_bytes
from nbmem.estimates import world_choice
from nbmem.estimates.card_choice import figures_of
from nbmem.estimates.programs.source_edits import difference
from nbmem.estimates.questions import plan_verdict
from nbmem.estimates.questions.fit import find_band, new_search, run_search
from nbmem.estimates.questions.predicted_savings import PredictedBytes, predict
from nbmem.estimates.questions.search.prober import Prober
from nbmem.estimates.remedies import BY_KEY, REMEDIES, is_slow, oversubscribes, parts_of
from nbmem.estimates.remedies.base import BATCH
from nbmem.estimates.remedies.compiled import ALREADY
from nbmem.estimates.remedies.paging import NOTHING_TO_PAGE
from nbmem.estimates.runs.probe_run import Reply, Request, refuse
from nbmem.report.estimate_results import Option, Plan, Probe
from nbmem.virtual.warnings import COMPILE_LATER

if TYPE_CHECKING:
    from nbmem.estimates.programs.programs import Program
    from nbmem.estimates.questions.search.prober import Ask
    from nbmem.virtual.cards import Card

    Keys = tuple[str, ...]

RUNS_OF_SEARCH = 12
"""Runs of a search for the largest value, to say how long it takes."""
USUAL_SEARCHES = 2
"""Searches at the end of a plan: the program as it is, and under its cheapest remedy."""


class Planner:
    """A record of one program's runs and predictions under remedies.

    Attributes:
        options: What is known of each, by its keys; the program itself under ().
        runs: How often a program was run.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the question's parts
        self,
        program: Program,
        variable: str | None,
        ask: Ask,
        card: Card,
        margin: int,
        tell: Callable[[str], None],
        show: Callable[[Plan, str], None] = lambda _plan, _left: None,
    ) -> None:
        self.variable = variable
        self.card = card
        self.margin = margin
        self.room = card.total_bytes - margin
        self.options: dict[Keys, Option] = {}
        self.runs = 0
        self._foreseen: dict[Keys, PredictedBytes] = {}
        self._tell, self._show = tell, show
        self._program = program
        bound = program.binding
        self.value = None if bound is None else bound.value
        self._base: Reply | None = None
        self._eager: Probe | None = None
        self._unplanned = ""
        self._seconds: list[float] = []
        self._true_ask = ask

    def _run(self, request: Request) -> Reply:
        begun = CLOCK.perf_counter()
        reply = self._true_ask(request)
        if self.runs and not is_slow(request.remedies):  # the first one's imports are no measure
            self._seconds.append(CLOCK.perf_counter() - begun)
        self.runs += 1
        return reply

    @property
    def _compiled(self) -> bool:
        """True if runs use plans of what the program compiles."""
        return self._eager is not None

    @property
    def base(self) -> Probe:
        """The probe of the program without remedies."""
        assert self._base is not None  # noqa: S101 - it is the first
        return self._base.probe

    def run_baseline(self) -> None:
        """Run the program without remedies, and predict each remedy.

        Raises:
            UsageError: It does not run, for another reason than memory.
        """
        self._base = self._run(self._request(()))
        refuse(self._base.probe, "as it is")
        self._begin()
        if COMPILE_LATER in self.base.notes:
            self.show(1)
            self._compile()

    def _compile(self) -> None:
        """Run the program again with its compiled functions planned.

        All later runs use compiled plans, too. The eager run is retained. It alone is used if the
        planned run fails.
        """
        eager, self._eager = self._base, self.base
        self._base = self._run(self._request(()))
        failure = self.base.failure
        if failure is not None and failure.kind == "other":
            self._unplanned = str(failure)
            self._base, self._eager = eager, None
        else:
            self._begin()

    def _begin(self) -> None:
        """Start the answer with the run of the program without remedies."""
        assert self._base is not None  # noqa: S101 - it is the first
        found = self._base.probe
        how = ", compiled" if self._eager is not None else ""
        self._tell(f"as it is{how}: {format_bytes(found.allocated)}")
        self.options[()] = Option(
            key=plan_verdict.AS_IT_IS, title=plan_verdict.AS_IT_IS, price="", code="", probe=found
        )
        compiles = self._eager is not None or COMPILE_LATER in found.notes
        for kind in REMEDIES:
            keys = (kind.key,)
            why_not = self._impossible(keys) or self._base.idle.get(kind.key)
            if kind.slow and compiles:
                why_not = why_not or ALREADY
            if kind.of_compiled and not compiles:
                why_not = why_not or kind.not_applicable
            if kind.oversubscribes and found.fits:
                why_not = NOTHING_TO_PAGE
            self.options[keys] = self._foresee(keys, why_not)

    def _foresee(self, keys: Keys, why_not: str | None = None) -> Option:
        assert self._base is not None  # noqa: S101 - it is the first
        found = predict(self._base, keys)
        if oversubscribes(keys):
            found = PredictedBytes(min(found.process, self.room), min(found.least, self.room))
        self._foreseen[keys] = found
        kinds = [BY_KEY[key] for key in keys]
        return Option(
            key="+".join(keys),
            title=" + ".join(kind.title for kind in kinds),
            price="; ".join(kind().price_of(self.card, 0) for kind in kinds),
            code="",
            probe=None,
            why_not=why_not,
            foreseen=None if why_not else found.process,
        )

    def run(self, keys: Keys, more: int = 0) -> None:
        """Run the program under one remedy or a pair.

        Args:
            keys: The remedies.
            more: Runs that may follow.
        """
        row = self.options.get(keys) or self._foresee(keys, self._impossible(keys))
        self.options[keys] = row
        if row.why_not is not None:
            return
        reply = self._run(self._request(keys))
        why_not = reply.refused
        if reply.probe.failure is not None and reply.probe.failure.kind == "other":
            why_not = why_not or f"The program fails under it: {reply.probe.failure}."
        if why_not is not None:
            self.options[keys] = dataclasses.replace(row, why_not=why_not, foreseen=None)
            return
        found = reply.probe
        self._tell(f"{row.title}: {format_bytes(found.allocated)}")
        self.options[keys] = dataclasses.replace(
            row,
            probe=found,
            price=reply.price,
            code=reply.code.replace(BATCH, self._batch(keys)),
            diff="" if reply.changed is None else difference(self._program.source, reply.changed),
            saved=self.base.allocated - found.allocated,
            saved_reserved=self.base.reserved - found.reserved,
        )
        self.show(more)

    def may_suffice(self, keys: Keys) -> bool:
        """Return whether the program may fit under remedies, by its ledger."""
        return self._foreseen[keys].least <= self.room

    def open(self) -> list[Keys]:
        """List single remedies that were not run, the likely best first.

        Paging remedies are left out: they are run after all others.
        """
        price: dict[Keys, int] = {(kind.key,): place for place, kind in enumerate(REMEDIES)}
        rest = [k for k in price if self.options[k].probe is None and not self.options[k].why_not]
        keys = [k for k in rest if not oversubscribes(k)]

        def likely(key: Keys) -> tuple[bool, int]:
            process = self._foreseen[key].process
            enough = process <= self.room
            return not enough, price[key] if enough else process

        return sorted(keys, key=likely)

    def sort_singles(self) -> list[Keys]:
        """Sort single remedies by the process bytes, as run or predicted.

        Remedies that cannot be applied, and paging, are left out.
        """
        keys = [
            k
            for k, o in self.options.items()
            if len(k) == 1 and not (o.why_not or oversubscribes(k))
        ]
        return sorted(keys, key=lambda k: plan_verdict.process(self.options[k]))

    def find_largest(self, keys: Keys, others: int = 0) -> None:
        """Find the largest value that always fits under remedies, as `fit` does.

        Args:
            keys: The remedies.
            others: How many such searches follow.
        """
        option = self.options[keys]
        if self.value is None or option.probe is None:
            return
        self.show(0, others + 1)
        prober = Prober(
            self._true_ask, self.card, self.margin, lambda _text: None, keys,
            compiled=self._compiled, parts=parts_of(keys),
        )  # fmt: skip
        search = new_search(prober, low=prober.parts, step=prober.parts)
        run_search(prober, search, self.value)
        band = find_band(prober, search)
        self.runs += len(prober.probes) - 1
        self._tell(f"{option.title}: up to {band.safe}")
        self.options[keys] = dataclasses.replace(option, largest=None if search.flat else band.safe)
        if others:
            self.show(0, others)

    def show(self, more: int, searches: int = USUAL_SEARCHES) -> None:
        """Show the partial answer and what may follow.

        Args:
            more: Runs under remedies that may follow.
            searches: Searches for a largest value that may follow them.
        """
        searches = 0 if self.value is None else searches
        left = [f"at most {more} more"] if more else []
        if searches:
            left.append(
                f"{'then ' if more else ''}the largest {self.variable} is still to be found"
            )
        if self._seconds:
            runs = more + RUNS_OF_SEARCH * searches
            left.append(f"about {sum(self._seconds) / len(self._seconds) * runs:.0f} s")
        runs_text = f"{self.runs} run{'s' * (self.runs > 1)}"
        self._show(self.plan(done=False), ", ".join([runs_text, *left]))

    def plan(self, *, done: bool = True) -> Plan:
        """Build the answer, or as much of it as is known."""
        first = self.options[()]
        ran = [o for k, o in self.options.items() if k and o.probe is not None]
        ran.sort(key=plan_verdict.process)
        cheapest = plan_verdict.cheapest(ran)
        certain = cheapest is not None and self._certain(cheapest)
        ran = [dataclasses.replace(o, cheapest=certain and o is cheapest) for o in ran]
        ran, needless = plan_verdict.without_needless(ran)
        rest = [*needless, *(o for k, o in self.options.items() if k and o.probe is None)]
        rest.sort(key=lambda o: (o.why_not is not None, plan_verdict.process(o)))
        card = figures_of(self.card, self.margin)
        return Plan(
            title=self._program.title,
            card=card,
            target=self.room,
            variable=self.variable,
            value=self.value,
            options=(first, *ran, *rest),
            sentences=(
                *plan_verdict.sentences(first, ran, rest, card, self.room, done=done),
                *plan_verdict.of_compiled(self.base, self._eager, self._unplanned),
                *world_choice.rank_sentences(self._program, self.base),
            ),
        )

    def _certain(self, cheapest: Option) -> bool:
        """Return whether every cheaper remedy was run or cannot suffice."""
        last = plan_verdict.price(cheapest)
        return not any(
            plan_verdict.price(self.options[keys]) < last and self.may_suffice(keys)
            for keys in self.open()
        )

    def settled(self) -> bool:
        """Return whether no remedy that was not run can change the verdict."""
        ran = [o for k, o in self.options.items() if k and o.probe is not None]
        found = plan_verdict.cheapest(ran)
        if found is not None:
            return self._certain(found)
        return not any(self.may_suffice(keys) for keys in self.open())

    def _request(self, keys: Keys) -> Request:
        parts = parts_of(keys)
        value = None if self.value is None else self.value // parts
        return Request(
            card=self.card,
            margin=self.margin,
            value=value,
            remedies=keys,
            compiled=self._compiled,
        )

    def _batch(self, keys: Keys) -> str:
        """Format the assignment of the batch under remedies."""
        return f"{self.variable} = {self._request(keys).value}"

    def _impossible(self, keys: Keys) -> str | None:
        parts = parts_of(keys)
        if parts == 1:
            return None
        if self.value is None:
            return "It is not known which variable is the batch; name it with --batch."
        if self.value < parts:
            return f"A batch of {self.value} cannot be cut into {parts}."
        return None
