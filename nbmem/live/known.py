"""What is known of the allocated bytes while a traced loop runs, without touching a tensor.

A tensor is not read from the hub's thread: autograd writes gradients without the interpreter's
lock. The training hooks see storages in the user's own thread, and what they saw last is added up
here. So each figure is that of the last change of phase, none is there before a loop's first
forward has ended, and the rest of `allocated` is one figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.core.categories import Category

if TYPE_CHECKING:
    from nbmem.live.messages import Entry
    from nbmem.record.met import Known
    from nbmem.record.recorder import Recorder

CATEGORIES = (
    Category.WEIGHTS,
    Category.BUFFERS,
    Category.GRADIENTS,
    Category.OPTIMIZER_STATE,
)
REST = ("rest", "activations etc.")

Storages = dict[tuple[int, int], int]
"""(card, address) -> bytes."""


class KnownBytes:
    """Follows one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._owned: dict[tuple[Known, Category], tuple[int, Storages]] = {}
        self._gradients: tuple[int, Storages] = (-1, {})
        self._freed: dict[int, int] = {}
        self._batches = self._turns = 0
        self._zeroing: int | None = None
        self._sums: dict[tuple[int, Category], int] = {}

    def of(self, device: int, allocated: int) -> tuple[Entry, ...]:
        """A card's allocated bytes by category, the rest last; empty where nothing is known."""
        sums = {c: self._sums.get((device, c), 0) for c in CATEGORIES}
        gradients = sums.pop(Category.GRADIENTS) - self._freed.get(device, 0)
        beside = allocated - sum(sums.values())
        # zero_grad() frees one after the other, and only its end is seen: no more than there are.
        sums[Category.GRADIENTS] = max(0, min(gradients, beside))
        rest = beside - sums[Category.GRADIENTS]
        if rest < 0 or rest == allocated:  # seen before something went, or nothing seen
            return ()
        named = tuple((c.key, c.label, sums[c]) for c in CATEGORIES if sums[c])
        return (*named, (*REST, rest))

    def follow(self) -> None:
        """Take in what the hooks have seen since the last call."""
        identities = self.recorder.identities
        batches = identities.owned[self._batches :]
        self._batches += len(batches)
        for first, last in batches:
            for mark, seen, owner in identities.rows(first, last):
                if owner is not None:
                    self._see(mark, (owner, seen.category), (seen.device, seen.addr), seen.size)
        self._follow_gradients()
        gone = [key for key in self._owned if key[0].ref() is None]
        for key in gone:
            del self._owned[key]
        self._add_up()

    def _see(
        self, mark: int, key: tuple[Known, Category], place: tuple[int, int], size: int
    ) -> None:
        """A later walk of the same module or optimizer replaces the earlier one."""
        walk = self._owned.get(key)
        if walk is None or walk[0] != mark:
            walk = self._owned[key] = (mark, {})
        walk[1][place] = size

    def _follow_gradients(self) -> None:
        """The gradients of the last backward, less what zero_grad() has freed since."""
        first, last = self.recorder.identities.last_gradients
        if last > first:
            rows = self.recorder.identities.rows(first, last)
            if rows[0][0] != self._gradients[0]:
                storages = {(s.device, s.addr): s.size for _, s, _ in rows}
                self._gradients = (rows[0][0], storages)
                self._freed.clear()
        turns, self._turns = self.recorder.turns.since(self._turns)
        for turn in turns:
            if turn.kind != "zero_grad":
                continue
            if turn.begins:
                self._zeroing = turn.mark
            elif self._zeroing is not None and turn.mark > self._gradients[0]:
                for device, size in self.recorder.marks.requested_between(
                    self._zeroing, turn.mark
                ).items():
                    self._freed[device] = self._freed.get(device, 0) + max(0, -size)

    def _add_up(self) -> None:
        storages: dict[Category, Storages] = {c: {} for c in CATEGORIES}
        for (_, category), (_, seen) in self._owned.items():
            if category in storages:
                storages[category].update(seen)
        storages[Category.GRADIENTS].update(self._gradients[1])
        claimed: set[tuple[int, int]] = set()
        self._sums = {}
        for category, seen in storages.items():
            for place in seen.keys() - claimed:
                key = (place[0], category)
                self._sums[key] = self._sums.get(key, 0) + seen[place]
            claimed |= seen.keys()
