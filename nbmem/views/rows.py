"""Build the tables that text and HTML share: ledger and holdings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbmem.core.session.categories import ACTIVE, BESIDE, CARD, PROCESS, RESERVED, Category
from nbmem.core.session.holders import HolderKind
from nbmem.core.session.tensor_names import without_numbers
from nbmem.core.session.tensor_parts import OTHER, meaning_of
from nbmem.core.units import format_bytes
from nbmem.views import report_sentences

if TYPE_CHECKING:
    from nbmem.report.ledger.balance import Ledger
    from nbmem.report.model import Holding, Report

_VARIABLES = (HolderKind.NAME, HolderKind.FRAME, HolderKind.MODULE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A number of bytes in a table.

    Attributes:
        count: Bytes; None if unknown.
    """

    count: int | None

    @property
    def text(self) -> str:
        """The bytes as they are formatted everywhere."""
        return format_bytes(self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """A line of the ledger table.

    Attributes:
        label: Name of the category or of the sum.
        meaning: What it includes.
        category: None for a sum of all lines above.
        peak: Bytes at the highest allocated moment.
        end: Bytes after the last event.
        part: Whether it is a part of the line above and no category of its own.
    """

    label: str
    meaning: str
    category: Category | None
    peak: Amount
    end: Amount
    part: bool = False


_SUMS = (
    ("active", ACTIVE, "blocks in use, pending ones included"),
    ("reserved", RESERVED, "held from the driver: torch.cuda.memory_reserved()"),
    ("process", PROCESS, "what nvidia-smi shows for this process"),
    ("card", CARD, "all of the card"),
)
_ON_HOST = {
    "active": ("tensors", "all storages that were seen to live"),
    "reserved": None,
    "process": ("process", "resident bytes of this process: what top shows"),
    "card": ("machine", "all of the machine's memory, or of its container's"),
}
"""Labels of the sums if the card is the host's memory; None to leave a sum out."""


HOST_PARTS = {
    "tensors": ("of it shared", "tensors in memory that other processes can map, too"),
    "files": ("of it files", "code of libraries and mapped files, which the page cache has, too"),
    "shared": ("of it shared memory", "resident pages of shared memory: share_memory_, /dev/shm"),
    "cache": ("of it page cache", "files in memory that the kernel gives back when asked"),
}
"""Label and meaning of the parts of the host's memory."""
PARTS_OF = {"active": ("tensors",), "process": ("files", "shared"), "free": ("cache",)}
"""The sums, each with the category that it follows."""


def ledger_rows(report: Report) -> list[LedgerRow]:
    """Return the ledger's rows at the peak and at the end.

    Categories that are empty in both are left out. The bytes add up exactly, and each figure is
    written as everywhere else.
    """
    peak, end = report.ledger_at_peak, report.ledger_at_end
    host, kind = report.device.is_host, report.device.kind
    at_peak, at_end = _amounts(peak), _amounts(end)
    rows: list[LedgerRow] = []
    before = 0
    for name, parts, what in _SUMS:
        for category in parts[before:]:
            if category in BESIDE:
                rows += _framework_rows(category, peak, end)
            elif peak[category] or end[category]:
                rows.append(
                    LedgerRow(
                        label=report_sentences.label(category, peak, end, kind=kind),
                        meaning=report_sentences.meaning(category, peak, end, kind=kind),
                        category=category,
                        peak=at_peak[category],
                        end=at_end[category],
                    )
                )
                rows += _category_parts(category, peak, end)
        if name == "card":
            rows += _parts(PARTS_OF["free"], peak, end)
        before = len(parts)
        label_and_meaning = _ON_HOST[name] if host else (name, what)
        if label_and_meaning is not None:
            sums = at_peak[name], at_end[name]
            rows.append(
                LedgerRow(
                    label=label_and_meaning[0],
                    meaning=label_and_meaning[1],
                    category=None,
                    peak=sums[0],
                    end=sums[1],
                )
            )
            rows += _parts(PARTS_OF.get(name, ()), peak, end)
    return rows


def _parts(names: Iterable[str], peak: Ledger, end: Ledger) -> Iterator[LedgerRow]:
    """Yield the rows for shared or file-backed parts of host memory.

    Each follows the line of which it is a part.
    """
    for name in names:
        first, last = (getattr(one.machine, name, None) for one in (peak, end))
        if first or last:
            label, meaning = HOST_PARTS[name]
            yield LedgerRow(
                label=label,
                meaning=meaning,
                category=None,
                peak=Amount(count=first),
                end=Amount(count=last),
                part=True,
            )


def _category_parts(category: Category, peak: Ledger, end: Ledger) -> Iterator[LedgerRow]:
    """Yield the rows of a category's parts, which add up to it."""
    first, last = dict(peak.parts_of(category)), dict(end.parts_of(category))
    if not first and not last:
        return
    # Where one moment has parts, the other is shown by them, too.
    first, last = first or {OTHER: peak[category]}, last or {OTHER: end[category]}
    names = sorted(first | last, key=lambda name: (name == OTHER, -first.get(name, 0), name))
    for name in names:
        sizes = first.get(name, 0), last.get(name, 0)
        if any(sizes):
            yield LedgerRow(
                label=name,
                meaning=meaning_of(name),
                category=None,
                peak=Amount(count=sizes[0]),
                end=Amount(count=sizes[1]),
                part=True,
            )


def _framework_rows(category: Category, peak: Ledger, end: Ledger) -> list[LedgerRow]:
    """Return a row for each framework in a category, the largest first."""

    def sizes(ledger: Ledger) -> dict[str, int]:
        used = category is Category.FRAMEWORKS
        return {one.label: one.held - one.cached if used else one.cached for one in ledger.owners}

    at_peak, at_end = sizes(peak), sizes(end)
    both = {name: (at_peak.get(name, 0), at_end.get(name, 0)) for name in at_peak | at_end}
    return [
        LedgerRow(
            label=report_sentences.owned(category, name),
            meaning=report_sentences.meaning(category, peak, end),
            category=category,
            peak=Amount(count=first),
            end=Amount(count=last),
        )
        for name, (first, last) in sorted(both.items(), key=lambda item: (-max(item[1]), item[0]))
        if first or last
    ]


def _amounts(ledger: Ledger) -> dict[Category | str, Amount]:
    amounts: dict[Category | str, Amount] = {
        category: Amount(count=ledger[category]) for category in Category
    }
    for name, parts, _ in _SUMS:
        hidden = name == "process" and not ledger.process_known
        amounts[name] = Amount(count=None if hidden else sum(ledger[c] for c in parts))
    return amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingGroup:
    """Holdings that differ only in the numbers in their names.

    They are one line of a table.

    Attributes:
        held: Their common name: `model.layers.*.linear1.weight`, or `state[...]['exp_avg']`.
        count: How many there are.
    """

    held: Holding
    count: int

    @property
    def size_of_all(self) -> int:
        """Requested bytes of all of them.

        The ledger counts requested bytes, too: rounding is a separate line.
        """
        return self.held.requested * self.count

    def size(self) -> str:
        """Format the size: `98.0 MiB`, or `8 x 98.0 MiB`."""
        one = format_bytes(self.held.requested)
        return one if self.count == 1 else f"{self.count} x {one}"


def group_holdings(holdings: Sequence[Holding]) -> list[HoldingGroup]:
    """Group holdings that differ only in numbers, the largest group first.

    A network repeats its layers.
    """
    kinds: dict[Holding, list[Holding]] = {}
    for held in holdings:
        kinds.setdefault(_without_numbers(held), []).append(held)
    found = [
        HoldingGroup(held=kind if len(set(members)) > 1 else members[0], count=len(members))
        for kind, members in kinds.items()
    ]
    return sorted(found, key=lambda row: -row.size_of_all)


def _without_numbers(held: Holding) -> Holding:
    holders = tuple(replace(holder, path=without_numbers(holder.path)) for holder in held.holders)
    return replace(held, name=held.name and without_numbers(held.name), holders=holders)


def other_variables(held: Holding) -> str:
    """Return a tensor's further variables, `also out`; empty without any."""
    if held.category not in (Category.USER_TENSORS, Category.INPUTS):
        return ""
    own = (held.name or "").partition(" (")[0]
    paths = (one.path for one in held.holders if one.kind in _VARIABLES and one.path != own)
    found = dict.fromkeys(path.partition("[")[0] for path in paths)
    return f"also {' and '.join(list(found)[:2])}" if found else ""


def holdings_title(shown: Sequence[HoldingGroup], report: Report) -> str:
    """Return the title of a holdings table, with the share that it shows."""
    bytes_shown = sum(row.size_of_all for row in shown)
    share = report_sentences.percent(bytes_shown, report.peak.allocated)
    size = format_bytes(bytes_shown)
    return f"Largest holdings at the peak: {size} requested, {share} of allocated"
