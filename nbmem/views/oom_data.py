"""Write the card of an out-of-memory error as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbmem.core.units import format_bytes
from nbmem.views import oom
from nbmem.views.explorer.data import tips_data
from nbmem.views.markup import one_line

if TYPE_CHECKING:
    from nbmem.report.model import OomReport

VERSION = 1
"""Raised when an older front end cannot draw it."""


def oom_data(
    ooms: Sequence[OomReport], error: str | None = None, *, traced: bool = True
) -> dict[str, Any]:
    """Return texts and tables of the errors: the main one in full.

    Args:
        ooms: The errors, the main one first.
        error: The exception that ended the recording, where no traceback stands beside the card.
        traced: Whether the cell was traced: else `%nbmem try` does not know it.
    """
    main_error, *others = ooms
    return {
        "version": VERSION,
        "title": oom.title(main_error),
        "reason": one_line(main_error.reason),
        "caught": main_error.caught,
        "what_to_do": oom.remedies_title(main_error),
        "remedies": [
            tip | {"ground": oom.ground(remedy)} | ({} if traced else {"try": None})
            for tip, remedy in zip(tips_data(main_error.remedies), main_error.remedies, strict=True)
        ],
        "tables": _tables(main_error),
        "after": oom.aftermath(main_error),
        "command": main_error.command and [main_error.command.name, *main_error.command.arguments],
        "notes": [one_line(note) for note in main_error.notes],
        "others": oom.other_places(others),
        "calls": [one_line(call) for call in reversed(main_error.calls)],
        "error": None if error is None else one_line(error),
    }


def _tables(main_error: OomReport) -> list[dict[str, Any]]:
    """Return the tables: rows are [category or null, bytes, name]."""
    found: list[tuple[str, list[list[Any]]]] = [
        (
            "At that moment",
            [
                [None, format_bytes(count), f"{name}: {what}"]
                for name, count, what in oom.figures(main_error)
            ],
        ),
        (
            "The card",
            [
                [category.key, format_bytes(count), name]
                for category, name, count in oom.ledger(main_error)
            ],
        ),
        (
            oom.HOLDERS,
            [
                [
                    None if held.category is None else held.category.key,
                    format_bytes(held.requested),
                    oom.holder(held),
                ]
                for held in main_error.holders
            ],
        ),
    ]
    return [{"caption": caption, "rows": rows} for caption, rows in found if rows]
