"""Limits on what is kept, shown and drawn of a long recording."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nbmem.capture.record import session_builder
from nbmem.capture.record.draft_phases import DraftPhase, with_nested
from nbmem.core.session.spans import Span
from nbmem.core.session.steps import number_steps
from nbmem.report.analysis import build_report, visible_phases
from nbmem.views.explorer.data import explorer_data
from nbmem.views.html import render_html
from nbmem.views.text import render_text
from tests.benchmarks.load_to_report import Training


def loop(steps):
    training = Training()
    training.sizes = [1 << 20, 1 << 21]
    training.load()
    for step in range(steps):
        training.step(step)
    return training.session()


def test_a_long_loop_is_shown_in_part_and_says_so():
    session = loop(2_000)
    report = build_report(session)
    assert len(session.spans) == 2 + 3 * 2_000
    assert len(report.phases) <= visible_phases.FIRST_PHASES + 2 * visible_phases.LAST_PHASES
    assert report.phases[-1].step == 1_999
    assert any("Of 6001 phases the first 1000 and the last 4000" in note for note in report.notes)
    assert len(report.details.phases) == len(report.phases)
    assert report.ledger_at_peak.check() is None
    bands = explorer_data(report)
    assert len(json.dumps(bands)) < 300_000
    assert render_text(report)
    assert len(render_html(report)) < 300_000


def test_the_peaks_step_is_shown_wherever_it_is(monkeypatch):
    monkeypatch.setattr(visible_phases, "FIRST_PHASES", 6)
    monkeypatch.setattr(visible_phases, "LAST_PHASES", 9)
    training = Training()
    training.sizes = [1 << 20]
    training.load()
    for step in range(20):
        training.sizes = [1 << (23 if step == 10 else 20)]
        training.step(step)
    report = build_report(training.session())
    assert [row.step for row in report.phases if row.name == "forward"] == [0, 1, 10, 17, 18, 19]
    assert report.peak.at.step == 10


def test_a_short_one_is_shown_whole():
    report = build_report(loop(20))
    assert len(report.phases) == 61
    assert not any("are shown" in note for note in report.notes)


@pytest.mark.parametrize("lost", [False, True])
def test_phases_of_dropped_events_and_too_many_phases_are_left_out(monkeypatch, lost):
    monkeypatch.setattr(session_builder, "MAX_PHASES", 40)
    notes = []
    recorder = SimpleNamespace(note=notes.append)
    stretches = [
        DraftPhase("backward", max(0, i - 30), i, max(0, i - 29), i + 1, step=i) for i in range(100)
    ]
    inner = [
        DraftPhase("recompute", s.first, s.t0_ns, s.last, s.t1_ns, step=s.step, parent=i)
        for i, s in enumerate(stretches)
    ]
    kept = session_builder._bounded(recorder, [*stretches, *inner], lost=lost)
    outer = [one for one in kept if one.parent is None]
    assert [one.step for one in outer] == list(range(60, 100))
    assert all(kept[one.parent].step == one.step for one in kept if one.parent is not None)
    assert len(kept) == 80
    assert "120 of 200 phases are left out" in notes[0]
    assert "those before step 60" in notes[0]


def test_what_was_dropped_takes_its_phases_along():
    notes = []
    stretches = [DraftPhase("forward", 0, i, int(i > 90), i + 1, step=i) for i in range(100)]
    kept = session_builder._bounded(SimpleNamespace(note=notes.append), stretches, lost=True)
    assert [one.step for one in kept] == list(range(91, 100))
    assert notes


class Counting(list):
    """A sequence that counts the reads of its elements."""

    reads = 0

    def __getitem__(self, index):
        type(self).reads += 1 if isinstance(index, int) else len(range(*index.indices(len(self))))
        return super().__getitem__(index)


def test_numbering_steps_reads_each_phase_a_few_times():
    Counting.reads = 0
    names = ("input", "forward", "backward", "optimizer", "zero_grad")
    phases = Counting(DraftPhase(names[i % 5], i, i, key=1) for i in range(5_000))
    number_steps(phases)
    assert phases[-2].step == 999
    assert Counting.reads < 10 * len(phases)


def test_recomputes_find_their_backward():
    phases = [
        DraftPhase(("forward", "backward")[i % 2], 10 * i, i, 10 * i + 10, i + 1, step=i // 2)
        for i in range(40)
    ]
    inner = [DraftPhase("recompute", at, 0, at + 1, 1) for at in (5, 10, 15, 395, 401)]
    nested = with_nested(phases, inner)[40:]
    assert [(one.first, one.parent) for one in nested] == [(10, 1), (15, 1), (395, 39)]


def test_many_blocks_in_one_recording_are_bounded_too():
    session = loop(5)
    blocks = [
        Span(
            kind="block", name=f"b{i}", parent=0, t0_ns=i, t1_ns=i + 1, first=(i % 20,), last=(20,)
        )
        for i in range(6_000)
    ]
    report = build_report(replace(session, spans=(*session.spans, *blocks)))
    assert len(report.phases) <= visible_phases.FIRST_PHASES + 2 * visible_phases.LAST_PHASES
