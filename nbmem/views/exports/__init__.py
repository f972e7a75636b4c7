"""Export a recording in formats that other programs read.

Each has one file and one line in FORMATS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nbmem.core.errors import UsageError
from nbmem.core.files.untrusted_input import expand_home
from nbmem.core.suggestions import suggest
from nbmem.views.exports import allocations, page, perfetto, report, snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.report.ledger.card_ledger import CardLedger
    from nbmem.report.model import Report

__all__ = ["FORMATS", "Format", "find_format"]


class Format(NamedTuple):
    """A file format of one card's recording.

    Attributes:
        name: What the user types.
        what: What is in the file, and the programs that read it.
        of_report: Writes it from the report; None if it is made from the ledger.
        of_ledger: Writes it from the ledger; None if it is made from the report. Both raise
            NotWrittenError if it cannot be written.
    """

    name: str
    what: str
    of_report: Callable[[Report, Path], None] | None = None
    of_ledger: Callable[[CardLedger, Path], None] | None = None

    def write(
        self, report: Callable[[], Report], card_ledger: Callable[[], CardLedger], path: str | Path
    ) -> Path:
        """Write the file from what its format needs; the other is not read.

        Returns:
            The file.

        Raises:
            NotWrittenError: The file cannot be written; an older one is still there.
        """
        target = expand_home(path)
        if self.of_report is not None:
            self.of_report(report(), target)
        if self.of_ledger is not None:
            self.of_ledger(card_ledger(), target)
        return target


FORMATS = (
    Format("html", "the report as a page that stands alone", of_report=page.write),
    Format("json", "the report's figures in a stable form, for scripts", of_report=report.write),
    Format(
        "csv",
        "every allocation: bytes, category, name, birth, death, line",
        of_ledger=allocations.write,
    ),
    Format(
        "perfetto",
        "cells, phases and bytes over time, for ui.perfetto.dev",
        of_ledger=perfetto.write,
    ),
    Format(
        "snapshot",
        "what torch dumps, labelled, for pytorch.org/memory_viz",
        of_ledger=snapshot.write,
    ),
)


def find_format(name: str) -> Format:
    """Return the export format with this name.

    Raises:
        UsageError: There is none; the message lists them.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    names = [known.name for known in FORMATS]
    meant = suggest(name, names)
    raise UsageError(f"{name!r} is no format to export to. {meant}There are: {', '.join(names)}.")
