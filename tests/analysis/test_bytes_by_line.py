"""Bytes by the line of recorded code that allocated them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nbmem
from nbmem.allocator.caching import CachingAllocator
from nbmem.core.files.session import open_session, save_session
from nbmem.core.session.events import Action, Frame, Layout
from nbmem.core.session.session import Source
from nbmem.core.session.source_files import recorded_file
from nbmem.core.session.spans import Span
from nbmem.core.units import KIB, MIB
from nbmem.report.analysis import build_report
from nbmem.report.analysis.bytes_by_line import MAX_ROWS
from nbmem.views.explorer.data import explorer_data
from nbmem.views.explorer.size_limit import MAX_CODE, thinned
from nbmem.views.lines import lines_table
from tests.allocator.programs import events_of
from tests.analysis.test_moment_details import record_steps

SNAPSHOTS = Path(__file__).parents[1] / "recordings" / "snapshots"
TORCH = "/usr/lib/python3/site-packages/torch/"
TOP = Frame("/usr/bin/pytest", 8, "<module>")
CODE = ("", "def helper():", "    return take()", "for _ in range(3):", "  x = helper()", "  go()")


def line(number, *inside, function="<module>"):
    """Return a stack that begins in a line of the recorded code."""
    return (*inside, Frame("/home/x/cell.py", number, function), TOP)


LOADED = Frame(f"{TORCH}nn/modules/conv.py", 9, "forward")
HELPER = Frame("/home/x/helper.py", 7, "take")
ENGINE = Frame(f"{TORCH}autograd/__init__.py", 3, "_make_grads")
STACKS = (
    line(5, HELPER, LOADED),
    line(3, HELPER, function="helper")[:-1] + line(5),
    line(6, ENGINE),
    (Frame(f"{TORCH}utils/hooks.py", 1, "hook"),),
    (Frame("/home/x/loader.py", 4, "work"), Frame("/lib/python3.12/threading.py", 1, "_bootstrap")),
)
AT_5, AT_3, CALLS, HOOK, THREAD, NONE = 0, 1, 2, 3, 4, -1


def session_of(steps, phases=()):
    """Make a session in which each block has one of the stacks.

    A step is (bytes, stack), or an earlier step's number to give it back.
    """
    rows, stacks, held = [], [], {}

    def note(*event):
        rows.append(event)
        stacks.append(NONE)

    allocator = CachingAllocator(total_bytes=200 * MIB, settings="", on_event=note)
    for number, step in enumerate(steps):
        if isinstance(step, int):
            allocator.free(held.pop(step))
            continue
        size, stack = step
        held[number] = allocator.malloc(size, 0)
        assert rows[-1][0] == Action.ALLOC
        stacks[-1] = stack
    empty = record_steps([], "")
    events = replace(events_of(rows), stack=np.array(stacks, np.int64))
    trace = replace(empty.devices[0], events=events, end=allocator.layout(), start=Layout.empty())
    spans = [Span(kind="cell", name="cell", t0_ns=0, t1_ns=99, first=(0,), last=(len(rows),))]
    begins = [i for i, row in enumerate(rows) if row[0] == Action.ALLOC]
    for name, first, last in phases:
        place = {"first": (begins[first],), "last": (begins[last] + 1,)}
        spans.append(Span(kind="phase", name=name, t0_ns=0, t1_ns=99, parent=0, **place))
    source = Source(recorded_file(STACKS), CODE)
    return replace(empty, devices=(trace,), stacks=STACKS, spans=tuple(spans), source=source)


def rows_by_line(session):
    """Return peak, kept and taken bytes by line, and the report."""
    report = build_report(session)
    rows = (*report.lines.rows, *report.lines.elsewhere)
    found = {row.number or row.text: (row.peak, row.kept, row.taken) for row in rows}
    assert sum(row.peak for row in rows) == report.peak.allocated
    assert sum(row.kept for row in rows) == report.ledger_at_end.allocated
    return found, report


def test_a_helpers_bytes_are_the_calling_lines_and_a_loops_add_up():
    steps = [(MIB, AT_5), (3 * MIB, AT_5), 0, (2 * MIB, AT_5), 1, (100, AT_3)]
    found, report = rows_by_line(session_of(steps))
    # Innermost in the recorded code: the helper that stands in it has a line of its own.
    assert found == {3: (0, 512, 512), 5: (5 * MIB, 2 * MIB, 6 * MIB)}
    assert report.lines.file == "cell.py"
    assert report.lines.code[4] == (5, "  x = helper()")
    assert [row.text for row in report.lines.rows] == ["return take()", "x = helper()"]


def test_autograds_bytes_are_the_line_that_called_it():
    steps = [(MIB, AT_5), (100, CALLS), (4 * MIB, NONE), (KIB, HOOK), (2 * MIB, THREAD)]
    found, _ = rows_by_line(session_of(steps, [("forward", 0, 0), ("backward", 1, 4)]))
    assert found == {
        5: (MIB,) * 3,
        6: (4 * MIB + KIB + 512,) * 3,
        "code that no line of it called": (2 * MIB,) * 3,
    }


@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_bytes_without_a_line_are_listed_by_reason(phase):
    steps = [(MIB, CALLS), (MIB, AT_5), (4 * MIB, NONE)]
    found, _ = rows_by_line(session_of(steps, [("forward", 0, 1), (phase, 2, 2)]))
    # Another line of the program ran in between, so it is not known who called the engine.
    why = {
        "backward": "autograd, called by no line that is known",
        "optimizer": "code that no line of it called",
    }
    assert found == {6: (MIB,) * 3, 5: (MIB,) * 3, why[phase]: (4 * MIB,) * 3}


def test_what_was_there_before_is_no_lines():
    session = session_of([(MIB, AT_5), (2 * MIB, AT_5)])
    (trace,) = session.devices
    last = trace.events[np.array([len(trace.events) - 1])]
    late = replace(session, devices=(replace(trace, start=None, events=last),), spans=())
    found, _ = rows_by_line(late)
    assert found == {5: (2 * MIB,) * 3, "there before it began": (MIB, MIB, 0)}


def test_of_very_many_lines_the_largest_are_listed():
    session = session_of([(512 * (i + 1), i) for i in range(MAX_ROWS + 2)])
    stacks = tuple(line(i + 1) for i in range(MAX_ROWS + 2))
    found, _ = rows_by_line(replace(session, stacks=stacks))
    assert len(found) == MAX_ROWS + 1
    assert found["its other lines"] == (512 + 1024,) * 3


def test_without_stacks_there_are_no_lines():
    assert build_report(replace(session_of([(MIB, NONE)]), source=None)).lines is None
    assert build_report(session_of([(MIB, NONE)])).lines is None


def test_the_table_fits_80_columns_and_adds_up():
    steps = [(MIB, AT_5), (100, CALLS), (4 * MIB, THREAD), 0]
    assert lines_table(build_report(session_of(steps))).splitlines() == [
        "Lines of cell.py                           at the peak  at the end  taken in all",
        "  5  x = helper()                              1.0 MiB         0 B       1.0 MiB",
        "  6  go()                                        512 B       512 B         512 B",
        "     code that no line of it called            4.0 MiB     4.0 MiB       4.0 MiB",
        "= allocated                                    5.0 MiB     4.0 MiB       5.0 MiB",
    ]


def test_long_code_is_cut_around_its_lines():
    session = session_of([(MIB, AT_5)])
    long = replace(session, source=Source(session.source.file, CODE + ("pass",) * MAX_CODE))
    saved = thinned(build_report(long), 200)
    assert [number for number, _ in saved.lines.code] == [4, 5, 6]
    assert explorer_data(saved)["lines"] == {
        "file": "cell.py",
        "code": [[4, CODE[3]], [5, CODE[4]], [6, CODE[5]]],
        "rows": [[5, MIB, MIB, MIB]],
        "elsewhere": [],
    }


def test_the_code_survives_the_disk(tmp_path):
    session = session_of([(MIB, AT_5)])
    assert open_session(save_session(session, tmp_path / "a")).source == session.source


@pytest.mark.parametrize("name", ["train_resnet50", "train_gpt2_amp", "streams", "oom"])
def test_a_run_of_a_real_card(name):
    found, report = rows_by_line(nbmem.open(SNAPSHOTS / f"{name}.pickle.xz").session)
    assert report.lines.file == "train.py"
    assert not report.lines.elsewhere
    if name == "train_resnet50":
        assert found == {
            21: (102_475_264, 102_475_264, 102_475_264),
            24: (4_915_712, 0, 9_831_424),
            28: (966_152_192, 68_157_440, 6_390_556_160),
        }
