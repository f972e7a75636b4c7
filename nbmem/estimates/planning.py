"""What would make it fit: a program under every known remedy, each really run."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from nbmem.answers import CardFigures, Option, Plan
from nbmem.core.units import format_bytes
from nbmem.estimates.fitting import MARGIN, Prober
from nbmem.estimates.probing import Request, refuse
from nbmem.estimates.remedies import BY_KEY, REMEDIES, exclude_each_other
from nbmem.estimates.remedies.base import BATCH
from nbmem.estimates.search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbmem.answers import Probe
    from nbmem.estimates.fitting import Ask
    from nbmem.estimates.programs import Program
    from nbmem.estimates.remedies.base import Remedy
    from nbmem.virtual.cards import Card

PAIRED = 3
"""So many of the best remedies are tried in pairs."""
WORTH = 0.01
"""A remedy is worth a pair, and a search of its largest batch, from this part of the peak on."""


LOOSE = 0.02
"""The largest batch of a remedy may be too small by this part: a plan compares, fit is exact."""


class Planner:
    """Asks for one program under remedies."""

    def __init__(  # noqa: PLR0913, PLR0917 - the question's parts
        self,
        program: Program,
        variable: str | None,
        ask: Ask,
        card: Card,
        margin: int,
        tell: Callable[[str], None],
    ) -> None:
        self.variable = variable
        self.card = card
        self.margin = margin
        self._ask = ask
        self._tell = tell
        bound = program.binding
        self.value = None if bound is None else bound.value

    def as_it_is(self) -> Option:
        """The program itself.

        Raises:
            UsageError: It does not run, for another reason than memory.
        """
        found = self._ask(self._request(())).probe
        refuse(found, "as it is")
        self._tell(f"as it is: {format_bytes(found.allocated)}")
        return Option(key="as it is", title="as it is", price="", code="", probe=found)

    def option(self, keys: tuple[str, ...], base: Probe) -> Option:
        """The program under one remedy or a pair."""
        kinds = [BY_KEY[key] for key in keys]
        title = " + ".join(kind.title for kind in kinds)
        row = Option(
            key="+".join(keys),
            title=title,
            price="; ".join(kind.price for kind in kinds),
            code="",
            probe=None,
        )
        why_not = self._impossible(kinds)
        if why_not is None:
            reply = self._ask(self._request(keys))
            why_not = reply.refused
            if reply.probe.failure is not None and reply.probe.failure.kind == "other":
                why_not = why_not or f"The program fails under it: {reply.probe.failure}."
        if why_not is not None:
            return dataclasses.replace(row, why_not=why_not)
        found = reply.probe
        self._tell(f"{title}: {format_bytes(found.allocated)}")
        return dataclasses.replace(
            row,
            probe=found,
            price=reply.price,
            code=reply.code.replace(BATCH, self._batch(keys)),
            saved=base.allocated - found.allocated,
            saved_reserved=base.reserved - found.reserved,
        )

    def largest(self, option: Option) -> int | None:
        """The largest value of the variable with which the program fits under an option."""
        if self.value is None or option.probe is None:
            return None
        keys = _keys(option)
        parts = max((BY_KEY[key].parts for key in keys), default=1)
        prober = Prober(self._ask, self.card, self.margin, lambda _text: None, keys)
        if option.probe.ran:
            prober.probes[self.value] = option.probe
        search = Search(
            test=lambda value: prober.verdict(value, parts),
            room=self.card.total_bytes - self.margin,
            low=parts,
            step=parts,
            loose=LOOSE,
        )
        search.run(self.value // parts * parts or parts)
        self._tell(f"{option.title}: up to {search.best}")
        return None if search.flat else search.best

    def _request(self, keys: tuple[str, ...]) -> Request:
        parts = max((BY_KEY[key].parts for key in keys), default=1)
        value = None if self.value is None else self.value // parts
        return Request(card=self.card, margin=self.margin, value=value, remedies=keys)

    def _batch(self, keys: tuple[str, ...]) -> str:
        """The assignment of the batch under remedies."""
        return f"{self.variable} = {self._request(keys).value}"

    def _impossible(self, kinds: Sequence[type[Remedy]]) -> str | None:
        parts = max(kind.parts for kind in kinds)
        if parts == 1:
            return None
        if self.value is None:
            return "It is not known which variable is the batch; name it with --batch."
        if self.value < parts:
            return f"A batch of {self.value} cannot be cut into {parts}."
        return None


def plan(  # noqa: PLR0913 - the question's parts
    program: Program,
    ask: Ask,
    card: Card,
    *,
    margin: float = MARGIN,
    target: int | None = None,
    variable: str | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> Plan:
    """Run a program under every remedy and under pairs of the best.

    Args:
        program: With its batch variable bound if that is known.
        ask: Runs a request and replies.
        card: On which card.
        margin: Part of the card to keep free.
        target: Bytes of the process that are wanted; None for the card less the margin.
        variable: What the batch is called in the answer; None for its own name.
        tell: Hears about every run.

    Raises:
        UsageError: The program does not run, for another reason than memory.
    """
    kept = int(card.total_bytes * margin)
    if target is not None:
        kept = max(card.total_bytes - target, 0)
    if variable is None and program.binding is not None:
        variable = program.binding.name
    planner = Planner(program, variable, ask, card, kept, tell)
    first = planner.as_it_is()
    base = first.probe
    assert base is not None  # noqa: S101 - it ran
    singles = [planner.option((kind.key,), base) for kind in REMEDIES]
    worth = sorted(_worth(singles, base), key=lambda option: -_gain(option))
    couples = itertools.combinations([_keys(option)[0] for option in worth[:PAIRED]], 2)
    pairs = [planner.option(c, base) for c in couples if not exclude_each_other(c)]
    ran = [o for o in (*singles, *pairs) if o.probe is not None]
    ran.sort(key=lambda option: -_gain(option))
    if planner.value is not None:
        searched = {o.key for o in _worth(ran, base)}
        ran = [
            dataclasses.replace(o, largest=planner.largest(o)) if o.key in searched else o
            for o in ran
        ]
        first = dataclasses.replace(first, largest=planner.largest(first))
    rest = [option for option in singles if option.probe is None]
    wanted = card.total_bytes - kept
    return Plan(
        title=program.title,
        card=CardFigures(name=card.name, total=card.total_bytes, margin=kept),
        target=wanted,
        variable=variable,
        value=planner.value,
        options=(first, *ran, *rest),
        sentences=tuple(_sentences(first, ran, card, wanted)),
    )


def _keys(option: Option) -> tuple[str, ...]:
    return () if option.key == "as it is" else tuple(option.key.split("+"))


def _worth(options: Sequence[Option], base: Probe) -> list[Option]:
    """Those that save enough to be looked at closer."""
    least = WORTH * base.allocated
    return [o for o in options if o.probe is not None and _gain(o) >= least]


def _gain(option: Option) -> int:
    """Bytes that it saves: of the live ones, or of what the allocator keeps around them."""
    return max(option.saved, option.saved_reserved)


def _sentences(first: Option, ran: Sequence[Option], card: Card, wanted: int) -> list[str]:
    base = first.probe
    assert base is not None  # noqa: S101 - it ran
    limit = f"{format_bytes(wanted)} on a {card.name}"
    if base.fits:
        found = [f"It fits as it is: {format_bytes(base.need)} of {limit}."]
    else:
        taken = format_bytes(base.wanted)
        found = [f"It does not fit as it is: it would take {taken}, and there are {limit}."]
        order = [kind.key for kind in REMEDIES]
        fitting = [o for o in ran if o.probe is not None and o.probe.fits]
        cheapest = min(
            fitting,
            key=lambda o: (o.key.count("+"), max(order.index(key) for key in _keys(o))),
            default=None,
        )
        if cheapest is None:
            best = max(ran, key=_gain, default=None)
            found.append(
                "None of the remedies and pairs makes it fit."
                + (
                    f" The furthest is {best.title}, which would take "
                    f"{format_bytes(best.probe.wanted)}."
                    if best is not None and best.probe is not None and _gain(best) > 0
                    else ""
                )
            )
        else:
            assert cheapest.probe is not None  # noqa: S101 - it fits
            found.append(
                f"The cheapest that makes it fit: {cheapest.title} "
                f"({format_bytes(cheapest.probe.need)})."
            )
    return found
