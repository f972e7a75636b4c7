"""One look at the live heap: every storage on a card that Python can name, with its holders."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbmem.core.holders import HeldStorage, Holder, HolderKind
from nbmem.probes.cuda import initialized_torch
from nbmem.probes.holders.lost import all_tensors, holders_of_lost
from nbmem.probes.holders.pieces import Pieces
from nbmem.probes.holders.places import barred, places
from nbmem.probes.holders.reach import Reach
from nbmem.probes.holders.seen import SeenStorages
from nbmem.probes.holders.threads import of_other_threads
from nbmem.probes.holders.touch import Touch
from nbmem.probes.holders.ways import Ways
from nbmem.probes.holders.wording import Wording

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from nbmem.probes.holders.places import Place

_STRIDE = 32
"""Tensors between two moments at which the caller may stop it."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What one look found.

    Attributes:
        by_device: The storages of each card by its CUDA ordinal, largest first.
        complete: Whether the look came to its end; else holders are missing, and storages.
    """

    by_device: dict[int, tuple[HeldStorage, ...]] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """What a look shall pass over, to learn what letting go of it would free.

    Attributes:
        place: Says which places to leave out.
        edges: References to pass over, as the ids of their two ends.
    """

    place: Callable[[Place], bool] = lambda _: False
    edges: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Care:
    """What a look must not read because other threads may be writing it.

    Attributes:
        may_touch: Is asked of each tensor, storage and graph node before anything in it is read;
            None allows all.
        threads_at_work: Whether threads of the program may be computing now. Nothing is then read
            of tensors that their frames reach, the notebook's names included where one of them
            runs the user's own code; and no gradient and no graph if there are any.
    """

    may_touch: Callable[[Any], bool] | None = None
    threads_at_work: bool = False


def walk(  # noqa: PLR0913 - all but the first say what to leave out
    namespace: Mapping[str, Any],
    cut: Cut | None = None,
    met: Callable[[Iterable[Any]], None] | None = None,
    *,
    care: Care | None = None,
    budget_s: float | None = None,
    go_on: Callable[[], bool] | None = None,
) -> Walk:
    """Look at everything that holds memory on a card now.

    Args:
        namespace: The notebook's names.
        cut: What to pass over, or None.
        met: Is told the tensors that were met and whose graphs may be read; must not keep them.
        care: What must not be read; None reads all.
        budget_s: So many seconds of this thread's own it may take; None for as many as it needs.
        go_on: Is asked about every 6 ms whether to go on; must not run the user's code.
    """
    torch: Any = initialized_torch()
    if torch is None:
        return Walk()
    look = _Look(torch, namespace, cut or Cut(), met, care or Care())
    pieces = Pieces(torch, look.steps(), budget_s, go_on)
    pieces.run()
    return look.said(complete=pieces.ended)


def walk_in_pieces(
    namespace: Mapping[str, Any],
    cut: Cut | None = None,
    met: Callable[[Iterable[Any]], None] | None = None,
    *,
    care: Care | None = None,
    budget_s: float | None = None,
) -> Generator[None, None, Walk]:
    """`walk()` in pieces of about 6 ms, between which the user's code may run.

    Closing the generator ends it and lets go of all that it held. What nothing was found to hold is
    left out: it may have been put somewhere between two pieces.

    Args:
        namespace: As for `walk`.
        cut: As for `walk`.
        met: As for `walk`.
        care: As for `walk`.
        budget_s: As for `walk`; what the caller does between the pieces does not count.

    Returns:
        What was found, as the value of StopIteration.
    """
    torch: Any = initialized_torch()
    if torch is None:
        return Walk()
    look = _Look(torch, namespace, cut or Cut(), met, care or Care())
    pieces = Pieces(torch, look.steps(), budget_s)
    for _ in pieces.one_by_one():
        look.alone = False
        yield
    return look.said(complete=pieces.ended)


def reached(namespace: Mapping[str, Any], cut: Cut | None = None) -> set[tuple[int, int]]:
    """The storages that any place reaches, as (CUDA ordinal, address); no holder is named."""
    torch: Any = initialized_torch()
    if torch is None:
        return set()
    cut = cut or Cut()
    begun = [place.thing for place in places(namespace) if not cut.place(place)]
    return _storages_from(torch, begun, namespace, cut)


def reached_from(thing: object, namespace: Mapping[str, Any]) -> set[tuple[int, int]]:
    """The storages that one object reaches, as (CUDA ordinal, address)."""
    torch: Any = initialized_torch()
    return set() if torch is None else _storages_from(torch, [thing], namespace, Cut())


def _storages_from(
    torch: Any, things: list[object], namespace: Mapping[str, Any], cut: Cut
) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()

    def steps() -> Generator[None]:
        reach = Reach(torch, barred(namespace), cut.edges)
        yield from reach.steps(things)
        seen = SeenStorages(torch)
        yield from _see(seen, reach.tensors)
        found.update(seen.storage.values())

    Pieces(torch, steps()).run()
    return found


def _see(seen: SeenStorages, tensors: Mapping[int, Any]) -> Iterator[None]:
    for i, (key, tensor) in enumerate(tensors.items()):
        seen.add(key, tensor)
        if not i % _STRIDE:
            yield


class _Look:
    """One look in the making; what the steps hold ends with them, what is said is only text.

    Attributes:
        alone: Whether no code but the walk's own has run in this thread since it began.
    """

    def __init__(
        self,
        torch: Any,
        namespace: Mapping[str, Any],
        cut: Cut,
        met: Callable[[Iterable[Any]], None] | None,
        care: Care,
    ) -> None:
        self.alone = True
        self._torch = torch
        self._namespace = namespace
        self._cut = cut
        self._met = met
        self._care = care
        self._seen = SeenStorages(torch)
        self._complete = True
        self._holders: dict[tuple[int, int], list[Holder]] = defaultdict(list)

    def said(self, *, complete: bool) -> Walk:
        """What has been found up to now."""
        return Walk(self._seen.by_device(self._holders), complete=complete and self._complete)

    def steps(self) -> Generator[None]:
        """The look, in short steps."""
        torch, namespace, seen = self._torch, self._namespace, self._seen
        touch = Touch(self._care.may_touch)
        if self._care.threads_at_work:
            theirs: set[int] = set()
            yield from of_other_threads(torch, namespace, theirs)
            touch = Touch(self._care.may_touch, theirs)
        begun = [place for place in places(namespace) if not self._cut.place(place)]
        if self._care.threads_at_work:
            begun = [place for place in begun if place.kind is not HolderKind.THREAD]
        yield
        reach = Reach(torch, barred(namespace), self._cut.edges, touch)
        yield from reach.steps([place.thing for place in begun])
        if self._met is not None and touch.everything:
            self._met(reach.tensors.values())
            yield
        yield from _see(seen, reach.tensors)
        ways = Ways(reach, seen.targets())
        yield from ways.steps()
        yield from self._name(begun, ways)
        self._complete = ways.complete and touch.everything
        if touch.everything:  # else what was not read would pass for lost
            yield from self._name_lost(reach)

    def _name(self, begun: list[Place], ways: Ways) -> Iterator[None]:
        """Every place's way to every storage that it reaches."""
        wording = Wording(self._torch)
        for i, place in enumerate(begun):
            for found in ways.from_start(place.thing):
                if found is not None:
                    key, way = found
                    self._holders[self._seen.storage[key]].append(wording.holder(place, way))
                yield
            if not i % _STRIDE:
                yield

    def _name_lost(self, reach: Reach) -> Iterator[None]:
        found = all_tensors(self._torch)
        yield
        lost = {key: tensor for key, tensor in found.items() if key not in reach.tensors}
        del found
        for i, key in enumerate(list(lost)):
            if not self._seen.add(key, lost[key]) or self._seen.storage[key] in self._holders:
                del lost[key]
            if not i % _STRIDE:
                yield
        if lost:
            say_unseen = self._is_alone
            holders = yield from holders_of_lost(reach, lost, say_unseen=say_unseen)
            for key, holder in holders.items():
                self._holders[self._seen.storage[key]].append(holder)

    def _is_alone(self) -> bool:
        return self.alone
