"""The first sentence of a report: true in every situation, and one for all views."""

from dataclasses import replace

import pytest

from nbmem.core.session.categories import Category
from nbmem.core.units import GIB, MIB
from nbmem.frontends.sidebar.report_summary import summary
from nbmem.report.model import CardFit, LargestPart, OomReport, WouldRunOn
from nbmem.views.explorer.data import explorer_data
from nbmem.views.exports.report import report_json
from nbmem.views.html import render_html
from nbmem.views.oom import without_ooms
from nbmem.views.text import render_text
from nbmem.views.verdict import peak_sentence, verdict
from nbmem.views.would_run_on import would_run_line
from tests.views import sample_reports as sample

HELD = LargestPart(
    category=Category.ACTIVATIONS, held=300 * MIB, owner="m.features", owned=300 * MIB
)
SO_FAR = "fits an NVIDIA H100 80GB HBM3 so far with 96%"
START = "Peak 1.13 GiB of 79.18 GiB"
FITS = "fits an NVIDIA H100 80GB HBM3 with 96% to spare beside other processes"


def report(**changes):
    """Return a small report with its largest part, and changes."""
    return replace(sample.small(), **{"largest": (HELD,), **changes})


def test_it_names_what_dominates_by_category_and_owner():
    assert verdict(report()) == f"{START}: {FITS}; 26% is activations of `m.features`."
    most = replace(HELD, owned=200 * MIB)
    assert verdict(report(largest=(most,))).endswith("activations, most of it of `m.features`.")
    part = replace(HELD, owned=100 * MIB)
    text = verdict(report(largest=(part,)))
    assert text.endswith("activations, the largest part of it of `m.features`.")
    context = LargestPart(category=Category.CONTEXT, held=600 * MIB)
    text = verdict(report(largest=(context, HELD)))
    assert text.endswith("52% is context and libraries, 26% activations of `m.features`.")
    cache = LargestPart(category=Category.INPUTS, held=300 * MIB, owned=300 * MIB, part="KV cache")
    assert verdict(report(largest=(cache,))).endswith("; 26% is KV cache.")
    scores = replace(HELD, owned=200 * MIB, part="logits")
    assert verdict(report(largest=(scores,))).endswith("; 26% is activations, most of it logits.")
    cached = LargestPart(category=Category.CACHED_RELEASABLE, held=600 * MIB)
    assert verdict(report(largest=(cached,))).endswith("; 52% is cached by torch.")


def test_a_share_of_another_moment_says_so():
    small = report()
    later = replace(small.peak, process=small.peak.process + GIB)
    assert verdict(report(peak=later)) == (
        "Peak 2.13 GiB of 79.18 GiB: fits an NVIDIA H100 80GB HBM3 with 95% to spare beside other "
        "processes; when most was allocated, 26% was activations of `m.features`."
    )


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"error": "ValueError: no"}, f" until ValueError ended it: {SO_FAR}"),
        ({"error": "KeyboardInterrupt"}, f" until it was interrupted: {SO_FAR}"),
        ({"ran_out": True}, " until memory ran out; 26% is"),
        ({"error": "OutOfMemoryError: CUDA out of memory."}, " until memory ran out; 26% is"),
        ({"cards": 2}, " on cuda:0, one of 2 cards: fits"),
    ],
)
def test_an_early_end_and_several_cards_are_said(changes, text):
    assert verdict(report(**changes)).startswith(f"{START}{text}")


def test_a_card_that_the_file_does_not_name_is_not_judged():
    text = verdict(replace(sample.without_process(), card_known=False))
    assert text.startswith("Peak 1.13 GiB reserved by torch: the card is not in the file")
    assert "fits" not in text


def test_memory_that_ran_out_is_first_and_a_caught_error_is_counted():
    failed = OomReport(
        at=sample.small().peak.at, device=0, asked=2 * GIB, wanted=2 * GIB, free=MIB, reason="."
    )
    ended = report(ooms=(failed,))
    assert verdict(ended).startswith("Ran out of memory: 2.00 GiB asked for, 1.0 MiB free")
    assert render_text(ended).startswith("Ran out of memory: 2.00 GiB asked for, 1.0 MiB free")
    beside = without_ooms(ended)  # the error's own output has its sentence
    assert verdict(beside) == f"{START} until memory ran out; 26% is activations of `m.features`."
    caught = report(ooms=(replace(failed, caught=True),) * 2)
    assert f"{START}: memory ran out 2 times, and the program went on; " in verdict(caught)


def test_a_recording_without_events_says_what_was_held():
    text = verdict(sample.nothing_happened())
    assert text == "No allocation recorded: this process held 0 B of 79.18 GiB throughout."


@pytest.mark.parametrize("name", sample.ALL)
def test_all_views_have_the_same_sentence(name):
    one = sample.ALL[name]()
    text = verdict(one)
    assert explorer_data(one)["verdict"] == report_json(one)["verdict"] == text
    assert summary(one, None, 0.0).verdict == text
    if one.ooms:
        text = peak_sentence(one)
    assert " ".join(text.split()) in " ".join(render_text(one).split())
    assert "style=" in render_html(one)


CARDS = (
    CardFit(card="S", total=8 * GIB, fits=False, short=GIB, how="small"),
    CardFit(card="M", total=16 * GIB, fits=True, margin=False, spare=100 * MIB, how="just"),
    CardFit(card="L", total=24 * GIB, fits=True, spare=GIB, releases=True, how="replayed"),
    CardFit(card="X", total=80 * GIB, fits=True, spare=60 * GIB, exact=True, how="ample"),
)


def test_the_cards_are_one_line_and_chips():
    found = WouldRunOn(cards=CARDS, limits=("Not all is known.",))
    one = report(would_run_on=found)
    assert would_run_line(one) == (
        "Would run on: M (only just, 0.6% to spare), L (releasing its cache), X (75% to spare); "
        "not on S (1.00 GiB short). Not all is known."
    )
    assert would_run_line(one) in " ".join(render_text(one).split())
    html = render_html(one)
    for words in ("<b>S</b>", "1.00 GiB short", "75% to spare", "Not all is known.", "(exact)"):
        assert words in html
    data = report_json(one)
    assert [(row["card"], row["fits"], row["spare"]) for row in data["would_run_on"]] == [
        ("S", False, None),
        ("M", True, 100 * MIB),
        ("L", True, GIB),
        ("X", True, 60 * GIB),
    ]
    assert data["would_run_on_limits"][0] == "Not all is known."


def test_many_cards_with_ample_room_are_counted():
    more = tuple(replace(CARDS[3], card=f"X{size}", total=size * GIB) for size in (90, 100, 110))
    line = would_run_line(report(would_run_on=WouldRunOn(cards=(CARDS[3], *more))))
    assert line == "Would run on: X (75% to spare) and all 3 larger ones up to X110."


def test_what_cannot_be_decided_is_said():
    open_ = replace(CARDS[1], fits=None, how="nobody knows")
    line = would_run_line(report(would_run_on=WouldRunOn(cards=(CARDS[0], open_))))
    assert line == "Would run on: not on S (1.00 GiB short); not decided for M: nobody knows."
    only = WouldRunOn(cards=(CARDS[0], open_), request_only=True)
    assert would_run_line(report(would_run_on=only)) == (
        "Would get past this request on: M; not on S (1.00 GiB short). What follows that request "
        "is not known."
    )
    assert would_run_line(report(would_run_on=WouldRunOn(limits=("No card.",)))) == "No card."
    assert would_run_line(report()) == ""
