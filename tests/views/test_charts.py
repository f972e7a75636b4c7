"""Charts: round ticks, exact steps and small files."""

import re
from dataclasses import replace

import numpy as np
import pytest

from nbmem.core.session.categories import ACTIVE, Category
from nbmem.core.units import GIB, MIB
from nbmem.views.charts import axes
from nbmem.views.charts.card_bar import card_bar
from nbmem.views.charts.timeline import BOTTOM, LEFT, RIGHT, TOP, timeline
from nbmem.views.palette import COLOURS
from tests.views import sample_reports as sample


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        (axes.byte_ticks(0), ["0 B"]),
        (axes.byte_ticks(900), ["0 B", "200 B", "400 B", "600 B", "800 B"]),
        (axes.byte_ticks(700 * MIB), ["0 MiB", "200 MiB", "400 MiB", "600 MiB"]),
        (axes.byte_ticks(GIB * 13 // 10), ["0 GiB", "0.5 GiB", "1 GiB"]),
        (axes.byte_ticks(79 * GIB), ["0 GiB", "20 GiB", "40 GiB", "60 GiB"]),
        (axes.count_ticks(3), ["0", "1", "2", "3"]),
        (axes.count_ticks(2500), ["0", "500", "1,000", "1,500", "2,000", "2,500"]),
    ],
)
def test_ticks_are_round_and_carry_their_unit(ticks, texts):
    assert [tick.text for tick in ticks] == texts


def noisy(points):
    """A report with every live category jumping at every moment."""
    rng = np.random.default_rng(7)
    report = sample.cnn()
    held = np.zeros((points, len(Category)), np.int64)
    held[:, list(ACTIVE)] = rng.integers(0, 512 * MIB, (points, len(ACTIVE)))
    moments = replace(
        report.timeline,
        t_ns=np.linspace(0, report.duration_ns, points).astype(np.int64),
        event=np.arange(points, dtype=np.int64),
        held=held,
        reserved=held.sum(axis=1) + rng.integers(0, GIB, points),
    )
    return replace(report, timeline=moments)


def test_two_thousand_noisy_points_stay_below_a_hundred_kilobytes():
    assert len(timeline(noisy(2000)).svg) < 100_000


def test_a_long_loop_stays_small():
    report = sample.long_loop()
    assert len(report.timeline.t_ns) > 5000
    assert len(timeline(report).svg) < 60_000


def stairs(svg, colour):
    """The area of one colour as its height in pixels at every column."""
    path = re.search(rf'<path d="M{LEFT} {BOTTOM}v([^"]*)" fill="{colour}"', svg)[1]
    height, *steps = re.split(r"h", path.split("H")[0])
    heights, now = [], -int(height)
    for step in steps:
        run, change = step.split("v")
        heights += [now] * int(run)
        now -= int(change)
    return heights + [now] * (RIGHT - LEFT - len(heights))


def test_the_stack_reaches_the_peak_and_stands_on_the_weights():
    report = sample.cnn()
    svg = timeline(report).svg
    weights = stairs(svg, COLOURS[Category.WEIGHTS])
    stack = stairs(svg, COLOURS[Category.WORKSPACE])
    assert len(stack) == RIGHT - LEFT
    ledger = report.ledger_at_peak
    below = ledger.active - ledger[Category.ROUNDING]
    assert max(stack) / max(weights) == pytest.approx(below / ledger[Category.WEIGHTS], rel=0.03)
    assert 0 < max(stack) < BOTTOM - TOP


def test_a_value_holds_until_the_next_moment():
    weights = stairs(timeline(sample.small()).svg, COLOURS[Category.WEIGHTS])
    assert len(set(weights)) == 1


def test_a_single_moment_has_no_curve():
    report = sample.cnn()
    moments = report.timeline
    one = replace(
        moments,
        t_ns=moments.t_ns[:1],
        event=moments.event[:1],
        held=moments.held[:1],
        reserved=moments.reserved[:1],
    )
    assert timeline(replace(report, timeline=one)) is None


def test_the_card_names_what_it_holds_and_what_is_free():
    svg = card_bar(sample.cnn()).svg
    for text in ("activations", "700.0 MiB", "context and libraries", "free 77.42 GiB"):
        assert f">{text}</text>" in svg


def test_an_empty_card_has_no_bar_of_a_process():
    card = card_bar(sample.nothing_happened())
    assert "this process" not in card.svg.split("</title>")[1]
    assert card.alt == "The card at the peak: this process holds 0 B of 79.18 GiB. free 79.18 GiB."
