"""A worker process that opens hostile files and reports the outcomes."""

from __future__ import annotations

import gc
import json
import re
import resource
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import nbmem
from nbmem.core.errors import NbmemError
from nbmem.views.exports import FORMATS
from nbmem.views.exports.report import report_json
from nbmem.views.html import render_page
from nbmem.views.text import render_text
from tests.fuzz.mutations import hostile_file

MAX_SECONDS = 2.0
"""Of CPU, for one file from opening it to its last view."""
MAX_MEMORY = 512 << 20
"""Bytes by which the process may grow meanwhile."""
LONGEST_SENTENCE = 1_000
_BROKEN_TIP = re.compile(r"was left out: (?!UsageError|ReplayError|LedgerImbalanceError)")
_ROOM = 4 << 30
"""Address space beyond what the process has: a MemoryError comes before the machine suffers."""


class Outcome(NamedTuple):
    """Outcome of one file.

    Attributes:
        number: Which file.
        kind: How it was made.
        how: `opened`, `refused`, or what failed: `exception`, `slow`, `memory`, `sentence`.
        text: The sentence or what failed, in short.
        seconds: Of CPU.
        grown: Bytes.
    """

    number: int
    kind: str
    how: str
    text: str
    seconds: float
    grown: int


class _TooSlowError(BaseException):
    """Raised when a file takes far too long; nothing may catch it."""


def _too_slow(_signal: int, _frame: object) -> None:
    raise _TooSlowError


def serve(pipe, only: str | None) -> None:
    """Answer numbers with outcomes until None comes."""
    signal.signal(signal.SIGPROF, _too_slow)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    gc.freeze()  # what is imported is no file's, and is not looked through after each of them
    resource.setrlimit(resource.RLIMIT_AS, (size + _ROOM, size + _ROOM))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "hostile.pickle")
        while (number := pipe.recv()) is not None:
            kind, data = hostile_file(number, only)
            path.write_bytes(data)
            del data
            pipe.send(try_file(number, kind, path))


def try_file(number: int, kind: str, path: Path) -> Outcome:
    """Open one file and draw it."""
    gc.collect()
    before, begin = _reset_peak(), time.process_time()
    signal.setitimer(signal.ITIMER_PROF, 5 * MAX_SECONDS)
    try:
        how, text = _opened(path, number)
    except _TooSlowError:
        how, text = "slow", traceback.format_exc(limit=-3)
    except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
        how, text = "exception", traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds, grown = time.process_time() - begin, _peak() - before
    if how in {"opened", "refused"}:
        if seconds > MAX_SECONDS:
            how = "slow"
        elif grown > MAX_MEMORY:
            how = "memory"
    return Outcome(number, kind, how, text, seconds, grown)


def _opened(path: Path, number: int) -> tuple[str, str]:
    try:
        draw(path, number)
    except NbmemError as err:
        sentence = str(err)
        fine = len(sentence) <= LONGEST_SENTENCE and sentence.isprintable()
        return "refused" if fine else "sentence", sentence[:2_000]
    return "opened", ""


def draw(path: Path, number: int) -> None:
    """Draw and export a file as `nbmem report` and `nbmem export` do."""
    trace = nbmem.open(path)
    report = trace.report()
    # A rule may find that a recording contradicts itself; any other error is a fault of ours.
    broken = [note for note in report.notes if _BROKEN_TIP.search(note)]
    if broken:
        raise AssertionError(f"a tip has failed: {broken[0][:300]}")
    render_text(report).encode("utf-8")
    json.dumps(report_json(report), allow_nan=False)
    render_page(report).encode("utf-8")
    chosen = FORMATS[number % 10 : number % 10 + 1]  # half of the files, each in one form
    for known in chosen:
        trace.export(known.name, path.with_name("out"))


def _reset_peak() -> int:
    """Reset the peak counter; return its current value."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) << 10
