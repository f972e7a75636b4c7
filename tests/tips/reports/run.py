"""Run a report's program with and without its cures, and judge its tips."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.forked_command import run_forked

if TYPE_CHECKING:
    from tests.tips.reports.catalogue import Report

TOLERANCE = 0.01
LIMIT = 90
"""Seconds after which a program is stopped."""
NOT_ALLOCATED = frozenset(
    (
        "pending", "cached_releasable", "cached_stuck", "frameworks", "frameworks_cached",
        "context", "other_processes", "driver", "free",
    )
)  # fmt: skip


class BrokenError(Exception):
    """A program did not run; the message has the end of its output."""


def run_program(text: str, name: str, card: str) -> dict[str, Any]:
    """Run a program with `nbmem run` and return its JSON.

    Raises:
        BrokenError: It was stopped, wrote no JSON, or raised something else than an
            out-of-memory error.
    """
    with TemporaryDirectory() as folder:
        script, report = (Path(folder, f"{name}{end}") for end in (".py", ".json"))
        script.write_text(text, encoding="utf-8")
        ran = run_forked(
            ["run", str(script), "--gpu", card, "--json", str(report), "--quiet"],
            Path(folder),
            {"XDG_CONFIG_HOME": folder, "APPDATA": folder, "PYTORCH_CUDA_ALLOC_CONF": ""},
            LIMIT,
        )
        output = (ran.stdout + ran.stderr).replace(f"{folder}{os.sep}", "")
        ended = f"exit code {ran.returncode}: {output[-300:]}"
        if not report.exists():
            raise BrokenError(ended)
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        if ran.returncode and ended_by(found) is None:
            raise BrokenError(ended)
    return found


def ended_by(found: dict[str, Any]) -> dict[str, Any] | None:
    """Return the out-of-memory error that ended a program, None without one."""
    errors = found["out_of_memory"]
    return errors[0] if errors and not errors[0]["caught"] else None


def tips_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """List what a person reads, in order: remedies of the error that ended it, then tips."""
    error = ended_by(found)
    remedies = [tip | {"rule": f"oom:{tip['rule']}"} for tip in error["remedies"]] if error else []
    return [*remedies, *found["findings"]]


def bytes_of(found: dict[str, Any], measure: str) -> int:
    """Return a program's bytes by a measure."""
    if measure in ("peak", "runs"):
        return int(found["peak"]["allocated"])
    if measure == "reserved":
        return int(found["peak"]["reserved"])
    ledger = found["ledger_at_end"]
    cached = () if measure == "end" else ("cached_releasable", "cached_stuck")
    return sum(size for key, size in ledger.items() if key not in NOT_ALLOCATED or key in cached)


def _key(tip: dict[str, Any]) -> str:
    key: str = tip["rule"]
    return key.removeprefix("oom:")


def is_right(report: Report, tip: dict[str, Any]) -> bool:
    """Return True where a tip names the true cause, with the names that it needs."""
    keys = {tip["rule"], _key(tip)}
    text = f"{tip['title']}\n{tip['code'] or ''}"
    named = all(any(one in text for one in name.split("|")) for name in report.names)
    return named and not keys.isdisjoint(report.rules)


def judge(report: Report) -> dict[str, Any]:
    """Run a report's program, as it was and cured, and return the verdict.

    Keys: `digest`; `tips` (rule and title of each); `right` (the first one names the true cause);
    `promised` (bytes, low and high, of a right one); `pasted` and `cured` (bytes that the tip's
    code and the readers' cure brought, or why not; null without); `kept` (whether the promise
    came true; null without a right tip); `false` (tips of the cured program); `seconds`.
    """
    started = time.perf_counter()
    before = run_program(report.program, report.name, report.card)
    if (report.measure == "runs") != (ended_by(before) is not None):
        raise BrokenError(f"measure is {report.measure!r}, and it ended by {ended_by(before)}")
    tips = tips_of(before)
    first = tips[0] if tips and is_right(report, tips[0]) else None
    verdict: dict[str, Any] = {
        "digest": report.digest(),
        "tips": [[tip["rule"], tip["title"]] for tip in tips],
        "right": first is not None,
        "promised": first and [first["low"], first["high"]],
        "pasted": None,
    }
    measure = measure_of(report, first)
    told = first and (report.as_told or report.paste(_key(first), first["code"] or ""))
    if told:
        verdict["pasted"] = _gain(report, before, told, measure)[0]
    verdict["cured"], verdict["false"] = _gain(report, before, report.cured, measure)
    verdict["kept"] = first and is_kept(verdict, report.measure)
    verdict["seconds"] = round(time.perf_counter() - started, 1)
    return verdict


def measure_of(report: Report, tip: dict[str, Any] | None) -> str:
    """Return how a tip's promise is measured: by the moment that the tip speaks of."""
    if tip is not None and report.measure in ("end", "peak"):
        if "at the peak" in tip["title"]:
            return "peak"
        if tip["rule"] == "graph_kept":
            return "end"
    return report.measure


def _gain(
    report: Report, before: dict[str, Any], text: str, measure: str
) -> tuple[int | str, list[str]]:
    """Return the bytes that a changed program saves, or why not, and its tips."""
    try:
        after = run_program(text, report.name, report.card)
    except BrokenError as err:
        return str(err), []
    output = [f"{tip['rule']}: {tip['title']}" for tip in tips_of(after)]
    if ended_by(after) is not None:
        return "out of memory", output
    return bytes_of(before, measure) - bytes_of(after, measure), output


def is_kept(verdict: dict[str, Any], measure: str) -> bool:
    """Return True where the cure brought what the tip had promised, within 1%.

    The tip's own code counts, and where it has none, the readers' cure. A program that ran out of
    memory has to run to its end.
    """
    gain = verdict["cured"] if verdict["pasted"] is None else verdict["pasted"]
    low, high = verdict["promised"]
    if isinstance(gain, str) or measure == "runs":
        return not isinstance(gain, str)
    return bool(low * (1 - TOLERANCE) <= gain <= high * (1 + TOLERANCE))
