"""Plain text of reports."""

import re
from dataclasses import replace

import pytest

from nbmem.core.session.categories import Category
from nbmem.core.session.holders import Holder, HolderKind
from nbmem.core.units import MIB, format_bytes
from nbmem.report.model import Holding, Moment
from nbmem.views.rows import group_holdings, ledger_rows, other_variables
from nbmem.views.steps import Gap, peak_row, shorten
from nbmem.views.text import render_text
from nbmem.views.verdict import peak_figures, peak_sentence
from tests.views import sample_reports as sample

SMALL = """\
Peak 1.13 GiB of 79.18 GiB: fits an NVIDIA H100 80GB HBM3 with 96% to spare beside other processes.
Most allocated in backward, step 0: 551.5 MiB allocated, 560.0 MiB reserved, 1.13 GiB process
  at train.py:31 in train_step
cell [3] on NVIDIA H100 80GB HBM3, 32.0 ms, 35 allocator events

Ledger                   at the peak                      at the end
  weights                100.0 MiB  ###                 100.0 MiB  ###
  gradients              100.0 MiB  ###                 100.0 MiB  ###
  optimizer state              0 B                      200.0 MiB  ######
  activations            300.0 MiB  #########                 0 B
  temporaries             50.0 MiB  ##                        0 B
  rounding                 1.5 MiB  .                   512.0 KiB  .
= active                 551.5 MiB                      400.5 MiB
  cached, releasable       6.4 MiB  .                   119.6 MiB  ####
  cached, stuck            2.1 MiB  .                    39.9 MiB  #
= reserved               560.0 MiB                      560.0 MiB
  context and libraries  600.0 MiB  ##################  600.0 MiB  ##################
= process                 1.13 GiB                       1.13 GiB
  other processes         2.00 GiB                       2.00 GiB
  free                   76.05 GiB                      76.05 GiB
= card                   79.18 GiB                      79.18 GiB

Phase      step      time        took       peak       left   reserved
forward       0   10.0 ms  +301.5 MiB  401.5 MiB  401.5 MiB  420.0 MiB
backward      0   20.0 ms  -201.0 MiB  551.5 MiB  200.5 MiB  560.0 MiB  <- peak
optimizer     0    2.0 ms  +200.0 MiB  400.5 MiB  400.5 MiB  560.0 MiB

Largest holdings at the peak: 39.8 MiB requested, 7.2% of allocated
  32.0 MiB  workspace  unnamed, born in forward, step 0
   7.8 MiB  weights    model.fc.weight (1000, 2048) float32
"""


def test_a_small_report_to_the_letter():
    assert render_text(sample.small()) + "\n" == SMALL


def test_repeated_layers_share_a_line_that_says_where_they_differ():
    one = sample.small().holdings[1]
    names = ["m.h.0.fc.weight (8, 8) float32", "m.h.11.fc.weight (8, 8) float32", "m.fc (0.5)"]
    rows = group_holdings([replace(one, name=name) for name in names])
    assert [(row.count, row.held.name) for row in rows] == [
        (2, "m.h.*.fc.weight (8, 8) float32"),
        (1, "m.fc (0.5)"),
    ]
    rows = group_holdings([replace(one, name=f"losses[{i}]") for i in range(3)])
    assert [(row.size(), row.held.name) for row in rows] == [("3 x 7.8 MiB", "losses[...]")]
    assert group_holdings([replace(one, name="losses[7]")] * 2)[0].held.name == "losses[7]"


def test_a_report_left_on_a_line_does_not_fill_the_screen():
    text = "<Report of 'cell [3]': at most 551.5 MiB allocated on NVIDIA H100 80GB HBM3>"
    assert repr(sample.small()) == text


@pytest.mark.parametrize("name", sample.ALL)
def test_every_report_is_plain_ascii_within_the_width(name):
    text = render_text(sample.ALL[name](), width=100)
    assert text.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    if name != "hostile":
        assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", sample.ALL)
def test_the_first_lines_say_what_a_person_needs(name):
    report = sample.ALL[name]()
    text = " ".join(render_text(report).split())
    assert text.startswith(" ".join(peak_sentence(report).split()))
    figures = " ".join(peak_figures(report).split())
    for word in ("allocated", "reserved", "process"):
        assert word in figures
    assert figures in text


def test_the_second_line_says_where():
    first, second, third = render_text(sample.out_of_memory()).splitlines()[:3]
    assert first == "Peak 2.78 GiB of 4.00 GiB until memory ran out."
    assert second.startswith("Most allocated in forward, step 1: 2.14 GiB allocated, ")
    assert third == "  at train.py:31 in train_step"


def test_the_second_line_has_one_moments_figures_and_what_was_higher_with_its_own():
    report = sample.small()
    elsewhere = Moment(event=30, t_ns=31_000_000, phase="optimizer", step=0)
    higher = replace(
        report.peak,
        reserved=600 * MIB,
        reserved_at=elsewhere,
        process=report.peak.process + 40 * MIB,
        process_at=elsewhere,
    )
    first, second, third = render_text(replace(report, peak=higher)).splitlines()[:3]
    assert first.startswith("Peak 1.17 GiB of 79.18 GiB: ")
    assert f"{second} {third.strip()}".startswith(
        "Most allocated in backward, step 0: 551.5 MiB allocated, 560.0 MiB reserved, 1.13 GiB "
        "process; at most 600.0 MiB reserved and 1.17 GiB process in optimizer, step 0"
    )


def test_an_error_and_lost_events_are_said():
    text = render_text(sample.out_of_memory())
    assert "\nEnded by OutOfMemoryError: CUDA out of memory." in text
    assert "- 1,234 older events were lost" in text
    assert "(virtual)" in text


def test_an_unknown_process_is_said_and_is_never_zero():
    text = render_text(sample.without_process())
    assert "of 79.18 GiB in use on the card: fits" in text.splitlines()[0]
    assert text.splitlines()[1].endswith("process unknown")
    assert re.search(r"= process +unknown +unknown", text)
    assert "context and others" in text


def test_a_recording_without_events_says_so():
    text = render_text(sample.nothing_happened())
    assert text.startswith("No allocation recorded: this process held 0 B of 79.18 GiB throughout")
    assert "Phase" not in text


def written_ledger(report):
    """Parse the printed ledger into rows."""
    figure = r"(unknown|[\d,.]+ (?:B|KiB|MiB|GiB))"
    return re.findall(
        rf"^(  |= )(\w[\w, ]*?) {{2,}}{figure}.*?{figure}", render_text(report), re.MULTILINE
    )


@pytest.mark.parametrize("name", ["small", "cnn", "out_of_memory", "without_process", "long_loop"])
def test_every_figure_is_written_as_everywhere_and_the_bytes_add_up(name):
    report = sample.ALL[name]()
    rows = ledger_rows(report)
    written = written_ledger(report)
    assert [(row.label, row.peak.text, row.end.text) for row in rows] == [
        tuple(line[1:]) for line in written
    ]
    assert all(row.peak.text == format_bytes(row.peak.count) for row in rows)
    running = 0
    for row in rows:
        if row.category is not None:
            running += row.peak.count
        elif row.peak.count is not None:
            assert running == row.peak.count, row.label
    assert rows[-1].label == "card"
    assert not re.search(r"[-+ ]0\.0+ [KMG]iB", render_text(report))


def test_small_amounts_keep_their_kibibytes():
    run = sample.Run()
    run.at(user_tensors=4096)
    run.segment = 2 * MIB
    run.at(user_tensors=4096)
    run.segment = 2 * MIB
    report = run.report()
    report = replace(report, ledger_at_peak=run.ledger(), ledger_at_end=run.ledger())
    assert "8.0 KiB" in render_text(report)


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
    assert "... steps 2 to 316 left out (315 of them), peak 1.14 GiB ..." in text
    assert re.search(r"^backward +317 .*<- peak$", text, re.MULTILINE)
    assert len(text.splitlines()) < 70


def test_an_evaluation_among_the_steps_that_are_left_out_is_not_counted_as_one():
    report = sample.long_loop()
    middle = next(i for i, row in enumerate(report.phases) if row.step == 100)
    looks = replace(report.phases[middle], name="inference", step=None)
    report = replace(report, phases=(*report.phases[:middle], looks, *report.phases[middle:]))
    assert [row.groups for row in shorten(report) if isinstance(row, Gap)] == [315, 180]


def test_a_short_loop_is_whole():
    assert shorten(sample.cnn(4)) == list(sample.cnn(4).phases)


def test_many_blocks_outside_of_steps_are_shortened_too():
    report = sample.cnn()
    blocks = tuple(replace(row, step=None, name="block") for row in report.phases * 50)
    report = replace(report, phases=blocks)
    assert [row.groups for row in shorten(report) if isinstance(row, Gap)] == [787]
    assert "... 787 more left out, peaks 97.7 MiB to 1.13 GiB ..." in render_text(report)


def test_a_step_with_a_loop_of_its_own_keeps_its_first_phases_its_peak_and_its_last():
    report = sample.cnn()
    wanted = peak_row(report)
    others = [row for row in report.phases if row is not wanted]
    around = tuple(replace(row, step=wanted.step) for row in (others * 50)[:60])
    phases = (*around, wanted, *around)
    report = replace(report, phases=phases)
    rows = shorten(report)
    assert [row.groups for row in rows if isinstance(row, Gap)] == [52, 56]
    shown = [row for row in rows if not isinstance(row, Gap)]
    assert (len(shown), wanted in shown) == (8 + 1 + 4, True)
    assert "... 52 more left out, peak" in render_text(report)


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


def test_a_tensor_with_two_names_is_listed_with_both():
    ways = (
        Holder(HolderKind.NAME, "out", "out"),
        Holder(HolderKind.GRAPH, "loss", "the graph of loss"),
        Holder(HolderKind.NAME, "preds", "preds[11]"),
    )
    held = Holding(
        name="out (8, 4) float32",
        category=Category.USER_TENSORS,
        requested=128,
        block=512,
        born_in=None,
        line=None,
        holders=ways,
    )
    assert other_variables(held) == "also preds"
    assert other_variables(replace(held, holders=ways[:2])) == ""
    assert other_variables(replace(held, category=Category.WEIGHTS)) == "", "its optimizer has it"
