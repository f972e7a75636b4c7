"""The time left of a search: by hand, and held to the runs that follow."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

from nbmem.estimates.questions.search import time_left
from nbmem.estimates.questions.search.time_left import RunCount, of_rough_search, time_text
from nbmem.estimates.questions.search.value_search import Search
from nbmem.report.estimate_results import Probe
from tests.estimate.small_cards import small_card
from tests.fake_clock import put_clock


def probe(value, *, fits):
    return Probe(value=value, fits=fits, allocated=1, reserved=1, process=1, wanted=1, phase=None)


@pytest.mark.parametrize(
    ("fits", "full", "step", "runs"),
    [
        ([], [64], 1, None),  # nothing fits yet
        ([8, 16], [], 1, None),  # and nothing is too large
        ([8, 16], [33], 1, None),  # more than twice
        ([8, 100], [200], 1, (6, 15)),  # 100 / 10 parts: four halvings, at least one run
        ([100], [110], 1, (5, 11)),  # close enough already
        ([100], [132], 16, (6, 12)),  # two steps: one halving
    ],
)
def test_the_runs_left_are_known_between_two_bounds(fits, full, step, runs):
    search = Search(test=lambda _: ("fits", 1), room=1, step=step)
    found = [*(probe(v, fits=True) for v in fits), *(probe(v, fits=False) for v in full)]
    assert of_rough_search(search, found) == (None if runs is None else RunCount(*runs))


@pytest.mark.parametrize(
    ("runs", "ended", "text"),
    [
        (None, [0, 1, 2], ""),
        ((2, 4), [5], ""),  # the first run's imports are no measure
        ((2, 4), [0, 3, 6], "about 6 to 12 s left"),
        ((3, 3), [0, 2, 4], "about 6 s left"),
        ((0, 3), [0, 2, 4], "at most about 6 s left"),
        ((1, 4), [0, 0.1, 0.2], "about a second left"),
        ((0, 0), [0, 9], "about a second left"),
        # Times 1, 1, 1, 5, 5, 5: the shorter half at least, the longer half at most.
        ((2, 4), [0, 5, 6, 11, 12, 17, 18], "about 2 to 20 s left"),
        # Only the last six runs count, and not the hundred seconds before.
        ((2, 2), [0, 100, *range(101, 107)], "about 2 s left"),
    ],
)
def test_the_text_has_as_many_seconds_as_the_runs_take(runs, ended, text):
    left = None if runs is None else RunCount(*runs)
    assert time_text(left, ended) == text


def step_of(width):
    def step(batch):
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).cuda()
        for _ in range(2):
            model(torch.zeros(batch, width, device="cuda")).sum().backward()

    return step


@pytest.mark.parametrize(("width", "start"), [(256, 16), (512, 20_000)])
def test_the_runs_that_follow_are_as_many_as_was_said(here, monkeypatch, width, start):
    said, lines = [], []
    monkeypatch.setattr(
        time_left, "time_text", lambda left, ended: said.append((len(ended), left)) or "LEFT"
    )
    found = here.fit(step_of(width), small_card(700), start=start, tell=lines.append)
    assert found.best is not None
    assert all(line.endswith("; LEFT") for line in lines)
    known = {done: left for done, left in said if left is not None}
    total = len(lines)
    assert len(known) >= total / 3  # it is told in time to be of use
    for done, left in known.items():
        assert left.least <= total - done <= left.most, (done, total, left)


def test_each_run_of_a_search_tells_the_time_that_is_left(here, monkeypatch):
    seconds = itertools.count(0, 2)  # later at each reading
    put_clock(monkeypatch, perf_counter=lambda: float(next(seconds)))
    lines, heads = [], []
    here.fit(
        step_of(256),
        small_card(700),
        start=16,
        tell=lines.append,
        show=lambda _, head: heads.append(head),
    )
    assert lines[0].endswith(" fits")  # nothing is known yet
    told = [line.partition("; ")[2] for line in lines]
    assert any(text.startswith("about ") and text.endswith(" s left") for text in told)
    assert "; the search goes on" in heads[0]
    for text, head in zip(told, heads, strict=False):
        assert head.endswith(f"; {text or 'the search goes on'}")
