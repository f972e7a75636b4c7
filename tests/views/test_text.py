"""The plain text of reports: one of them to the letter, the others by what they must say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nbmem.core.categories import Category
from nbmem.core.units import MIB
from nbmem.views.rows import Gap, alike, apportion, ledger_rows, shorten
from nbmem.views.text import render_text
from tests.views import sample

SMALL = """\
Peak 551.5 MiB allocated, 560.0 MiB reserved, 1.13 GiB process of 79.18 GiB in backward, step 0
  at train.py:31 in train_step
cell [3] on NVIDIA H100 80GB HBM3, 32.0 ms, 35 allocator events

Ledger                    at the peak                        at the end
  weights                   100.0 MiB  ###                    100.0 MiB  ###
  gradients                 100.0 MiB  ###                    100.0 MiB  ###
  optimizer state               0 MiB                         200.0 MiB  ######
  activations               300.0 MiB  #########                  0 MiB
  temporaries                50.0 MiB  ##                         0 MiB
  rounding                    1.5 MiB  .                        0.5 MiB  .
= active                    551.5 MiB                         400.5 MiB
  cached, releasable          6.4 MiB  .                      119.6 MiB  ####
  cached, stuck               2.1 MiB  .                       39.9 MiB  #
= reserved                  560.0 MiB                         560.0 MiB
  context and libraries     600.0 MiB  ##################     600.0 MiB  ##################
= process                 1,160.0 MiB                       1,160.0 MiB
  other processes         2,048.0 MiB                       2,048.0 MiB
  free                   77,871.0 MiB                      77,871.0 MiB
= card                   81,079.0 MiB                      81,079.0 MiB

Phase      step     time        took       peak       left   reserved
forward       0  10.0 ms  +301.5 MiB  401.5 MiB  401.5 MiB  420.0 MiB
backward      0  20.0 ms  -201.0 MiB  551.5 MiB  200.5 MiB  560.0 MiB  <- peak
optimizer     0   2.0 ms  +200.0 MiB  400.5 MiB  400.5 MiB  560.0 MiB

Largest holdings at the peak: 39.8 MiB requested, 7.2% of allocated
  32.0 MiB  workspace  unnamed, born in forward, step 0
   7.8 MiB  weights    model.fc.weight (1000, 2048) float32
"""


def test_a_small_report_to_the_letter():
    assert render_text(sample.small()) + "\n" == SMALL


def test_repeated_layers_share_a_line_that_says_where_they_differ():
    one = sample.small().holdings[1]
    names = ["m.h.0.fc.weight (8, 8) float32", "m.h.11.fc.weight (8, 8) float32", "m.fc (0.5)"]
    rows = alike([replace(one, name=name) for name in names])
    assert [(row.count, row.held.name) for row in rows] == [
        (2, "m.h.*.fc.weight (8, 8) float32"),
        (1, "m.fc (0.5)"),
    ]
    rows = alike([replace(one, name=f"losses[{i}]") for i in range(3)])
    assert [(row.size(), row.held.name) for row in rows] == [("3 x 7.8 MiB", "losses[...]")]
    assert alike([replace(one, name="losses[7]")] * 2)[0].held.name == "losses[7]"


def test_a_report_left_on_a_line_does_not_fill_the_screen():
    said = "<Report of 'cell [3]': at most 551.5 MiB allocated on NVIDIA H100 80GB HBM3>"
    assert repr(sample.small()) == said


@pytest.mark.parametrize("name", sample.ALL)
def test_every_report_is_plain_ascii_within_the_width(name):
    text = render_text(sample.ALL[name](), width=100)
    assert text.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    if name != "hostile":
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", sample.ALL)
def test_the_first_line_says_what_a_person_needs(name):
    first = render_text(sample.ALL[name]()).splitlines()[0]
    for word in ("allocated", "reserved", "process"):
        assert word in first


def test_the_first_line_says_where():
    first, second = render_text(sample.out_of_memory()).splitlines()[:2]
    assert first.endswith("2.78 GiB process of 4.00 GiB in forward, step 1")
    assert second == "  at train.py:31 in train_step"


def test_an_error_and_lost_events_are_said():
    text = render_text(sample.out_of_memory())
    assert "\nEnded by OutOfMemoryError: CUDA out of memory." in text
    assert "- 1,234 older events were lost" in text
    assert "(virtual)" in text


def test_an_unknown_process_is_said_and_is_never_zero():
    text = render_text(sample.without_process())
    assert "process unknown, of 79.18 GiB" in text.splitlines()[0]
    assert re.search(r"= process +unknown +unknown", text)
    assert "context and others" in text


def test_a_recording_without_events_says_so():
    text = render_text(sample.nothing_happened())
    assert text.startswith("No allocation recorded: 0 B allocated")
    assert "Phase" not in text


def written_ledger(report):
    """The ledger as a reader sees it: rows of (label, MiB at the peak, MiB at the end)."""
    figure = r"(unknown|[\d,.]+ MiB)"
    lines = re.findall(
        rf"^(  |= )(\w[\w, ]*?) {{2,}}{figure}.*?{figure}", render_text(report), re.MULTILINE
    )
    start = next(i for i, line in enumerate(lines) if line[0] == "  ")
    return [
        (
            mark == "= ",
            label,
            *(None if x == "unknown" else float(x[:-4].replace(",", "")) for x in xs),
        )
        for mark, label, *xs in lines[start:]
    ]


@pytest.mark.parametrize("name", ["small", "cnn", "out_of_memory", "without_process", "long_loop"])
@pytest.mark.parametrize("column", [2, 3], ids=["peak", "end"])
def test_the_written_figures_add_up_to_every_sum(name, column):
    running = 0.0
    sums = []
    for row in written_ledger(sample.ALL[name]()):
        if not row[0]:
            running += row[column]
        elif row[column] is not None:
            sums.append(row[1])
            assert running == pytest.approx(row[column], abs=1e-6), row
    assert sums[0] == "active"
    assert sums[-1] == "card"


def test_figures_add_up_whatever_the_bytes_are():
    odd = {c: 1_000_003 * (i + 1) + 12_345 for i, c in enumerate(Category) if c < Category.FREE}
    report = replace(sample.small(), ledger_at_peak=sample.ledger(odd, segment=999_999_937))
    running = 0.0
    for row in ledger_rows(report):
        figure = float(row.peak.text.removesuffix(" MiB").replace(",", ""))
        assert row.peak.count is not None
        assert abs(figure - row.peak.count / MIB) < 0.1
        if row.category is None:
            assert figure == pytest.approx(running, abs=1e-6)
        else:
            running += figure


def test_apportioning_rounds_the_largest_remainders_up():
    tenth = MIB // 10
    assert apportion([tenth * 3 // 2, tenth // 4, tenth * 2], 4, 10) == [2, 0, 2]


def test_small_amounts_keep_their_kibibytes():
    run = sample.Run()
    run.at(user_tensors=4096)
    run.segment = 2 * MIB
    run.at(user_tensors=4096)
    run.segment = 2 * MIB
    report = run.report()
    report = replace(report, ledger_at_peak=run.ledger(), ledger_at_end=run.ledger())
    assert "0.008 MiB" in render_text(report)


def test_a_long_loop_keeps_its_first_steps_its_peak_and_its_last():
    report = sample.long_loop()
    rows = shorten(report)
    assert [row.step for row in rows if not isinstance(row, Gap) and row.name == "backward"] == [
        0,
        1,
        317,
        498,
        499,
    ]
    assert [row.groups for row in rows if isinstance(row, Gap)] == [315, 180]
    text = render_text(report)
    assert "... steps 2 to 316 left out (315 of them), peak 1,163.2 MiB ..." in text
    assert re.search(r"^backward +317 .*<- peak$", text, re.MULTILINE)
    assert len(text.splitlines()) < 70


def test_a_short_loop_is_whole():
    assert shorten(sample.cnn(4)) == list(sample.cnn(4).phases)


def test_many_blocks_outside_of_steps_are_shortened_too():
    report = sample.cnn()
    blocks = tuple(replace(row, step=None, name="block") for row in report.phases * 50)
    report = replace(report, phases=blocks)
    assert [row.groups for row in shorten(report) if isinstance(row, Gap)] == [5, 789]
    assert "... 789 more left out, peaks 97.7 MiB to 1,152.5 MiB ..." in render_text(report)


def test_a_narrow_terminal_still_gets_the_tables():
    text = render_text(sample.cnn(), width=72)
    ledger = text.split("\n\n")[1]
    assert max(map(len, ledger.splitlines())) <= 72


def test_holdings_that_nothing_tells_apart_share_a_line():
    big, small, _ = sample.HOLDINGS
    report = replace(sample.cnn(), holdings=(big, big, small, big))
    text = render_text(report)
    assert "  3 x 98.0 MiB  activations  layer1.0.conv3" in text
    assert "Largest holdings at the peak: 326.0 MiB requested, 28% of allocated" in text
    assert text.count("layer1.0.conv3") == 1
