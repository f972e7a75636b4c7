"""Saved reports: fewer moments, each exact, within the size limit."""

from dataclasses import replace

import numpy as np
import pytest

import nbmem
from nbmem import virtual
from nbmem.core.session.categories import Category
from nbmem.report.analysis import build_report
from nbmem.views.explorer import MIME, explorer_output
from nbmem.views.explorer.output import unpacked
from nbmem.views.explorer.size_limit import LIVES, MAX_CHARACTERS, saved_output, thinned
from nbmem.views.mime_bundle import SAVED, mimebundle
from tests.recorded_runs import load, session_of
from tests.views import sample_reports as sample


@pytest.fixture(scope="module", params=["gpt2_b4s512_adamw", "resnet50_b32_sgdm"])
def report(request):
    return build_report(session_of(load(request.param)))


def test_a_saved_report_is_small(report):
    bundle = mimebundle(report)
    output = bundle[MIME]
    assert len(output["data"]) + len(output["times"]) <= MAX_CHARACTERS
    assert saved_size(bundle) <= SAVED


def test_beside_many_words_a_saved_report_keeps_fewer_moments(report):
    notes = tuple(f"{number}: {'a sentence of some length, ' * 6}" for number in range(12))
    plain, noted = mimebundle(report), mimebundle(replace(report, notes=notes))
    assert len(noted["text/plain"]) > len(plain["text/plain"]) + 2_000
    assert saved_size(noted) <= SAVED


def saved_size(bundle):
    """Return the characters of a report beside its pictures."""
    output, html = bundle[MIME], bundle["text/html"]
    pictures = sum(len(part.partition('"')[0]) for part in html.split("data:image/svg+xml")[1:])
    words = len(html) - pictures + len(bundle["text/plain"])
    return len(output["data"]) + len(output["times"]) + words


def test_the_moments_that_are_kept_are_those_that_were_recorded(report):
    fewer = thinned(report, 50)
    was, now = report.timeline, fewer.timeline
    assert len(now.event) < len(was.event)
    rows = np.searchsorted(was.event, now.event)
    assert (was.event[rows] == now.event).all()
    assert (was.held[rows] == now.held).all()
    assert (report.details.live[rows] == fewer.details.live).all()
    assert now.event[0] == was.event[0]
    assert now.event[-1] == was.event[-1]
    peak = int(np.searchsorted(now.event, report.peak.at.event))
    assert tuple(now.held[peak]) == report.ledger_at_peak.held


def test_every_phase_keeps_its_peak(report):
    moments = thinned(report, len(report.phases)).timeline
    allocated = report_allocated(moments)
    for row, (first, last) in zip(report.phases, report.details.phases, strict=True):
        inside = (moments.event >= first) & (moments.event <= last)
        assert allocated[inside].max() == row.peak_allocated


def report_allocated(moments):
    return moments.held[:, : Category.PENDING].sum(axis=1)


def test_the_map_of_the_pool_is_the_same_at_every_moment_that_is_kept(report):
    fewer = thinned(report, 50)
    rows = np.searchsorted(report.timeline.event, fewer.timeline.event)
    for row, was in list(enumerate(rows.tolist()))[::7]:
        before, after = report.details.pool.at(was), fewer.details.pool.at(row)
        assert [segment for segment, _ in after] == [segment for segment, _ in before]
        for (_, one), (_, other) in zip(before, after, strict=True):
            assert (one == other).all()


def test_what_is_small_enough_is_kept_whole():
    assert saved_output(sample.cnn()) == explorer_output(sample.cnn())


def test_a_short_curve_with_many_tensors_lists_fewer_of_them():
    torch = pytest.importorskip("torch")
    with virtual.activated("L4"):
        kept = [torch.empty(256 + n, device="cuda") for n in range(1000)]
        with nbmem.trace("one more") as trace:
            kept.append(torch.empty(256, device="cuda"))
        report = trace.report()
    for bins in (6, 25):
        fewer = thinned(report, bins)
        assert len(fewer.timeline.event) == len(report.timeline.event)
        assert len(fewer.details.lives) == LIVES * bins < len(report.details.lives)


PROGRAM = """
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
"""


def test_beside_cards_lines_and_tips_the_curve_of_each_step_is_kept():
    torch = pytest.importorskip("torch")
    with virtual.activated("L4"):
        with nbmem.trace("train", stacks=True) as trace:
            exec(PROGRAM, {"torch": torch, "nn": torch.nn})
        report = trace.report()
    bundle = mimebundle(report)
    kept = unpacked(bundle[MIME]["data"])["moments"]["event"]
    assert report.lines is not None
    assert "Would run on" in bundle["text/html"]
    assert len(kept) >= min(140, len(report.timeline.event)), (len(kept), saved_size(bundle))
