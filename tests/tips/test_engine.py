"""The tip engine: broken rules, muted rules, hostile names."""

from dataclasses import replace

import pytest

import nbmem.api.tracing as nbmem
from nbmem.api.render import unmuted
from nbmem.core.errors import UsageError
from nbmem.report.analysis import card_ledger_of, report_of
from nbmem.report.model import Finding
from nbmem.report.tips import engine, mutes
from nbmem.report.tips.engine import advise, rule_named
from nbmem.report.tips.rule import HEADINGS, Rule
from nbmem.report.tips.rules import RULES
from nbmem.views.html import render_html
from nbmem.views.text import render_text
from nbmem.views.tips import render_tips
from nbmem.views.tips_html import render_tips_html
from tests.tips.test_scenarios import SNAPSHOTS


@pytest.fixture(scope="module")
def idle():
    card_ledger = card_ledger_of(nbmem.open(SNAPSHOTS / "reserved_unused.pickle.xz").session)
    return card_ledger.session, card_ledger, report_of(card_ledger)


def finding(rule="made_up", low=1, high=1, **more):
    return Finding(rule=rule, title="t", evidence="e", low=low, high=high, ground="exact", **more)


def rule_that(check, name="made_up", **more):
    return Rule(name=name, text="Made up.", check=check, **more)


@pytest.fixture
def rules_are(monkeypatch):
    """Put other rules in the place of all."""
    return lambda *rules: monkeypatch.setattr(engine, "RULES", rules)


def test_a_rule_that_raises_is_left_out_with_one_note_and_the_others_speak(idle, rules_are):
    def broken(_):
        yield finding()
        raise ZeroDivisionError("by a rule")

    rules_are(rule_that(broken), *RULES)
    advice = advise(*idle)
    assert [f.rule for f in advice.findings if f.rule != "made_up"] == ["cached_memory"]
    (note,) = advice.notes
    assert "made_up was left out: ZeroDivisionError('by a rule')" in note


def test_the_largest_saving_comes_first_and_last_resorts_last(idle, rules_are):
    rules_are(
        rule_that(lambda _: [finding("small", high=5)], "small"),
        rule_that(lambda _: [finding("large", high=9)], "large"),
        rule_that(lambda _: [finding("last", high=99)], "last", last_resort=True),
    )
    assert [f.rule for f in advise(*idle).findings] == ["large", "small", "last"]


def test_what_has_a_price_comes_behind_other_large_savings(idle, rules_are):
    rules_are(
        rule_that(lambda _: [finding("costly", low=1 << 32)], "costly", has_price=True),
        rule_that(lambda _: [finding("free", low=1 << 31)], "free"),
        rule_that(lambda _: [finding("small")], "small"),
    )
    assert [f.rule for f in advise(*idle).findings] == ["free", "costly", "small"]


def test_what_has_a_price_waits_until_memory_is_short(idle, rules_are):
    rules_are(
        rule_that(lambda _: [finding("short")], "short", when="short"),
        rule_that(lambda _: [finding("asked")], "asked", when="asked"),
    )
    assert advise(*idle).findings == ()
    everything = advise(*idle, everything=True)
    assert {f.rule for f in everything.findings} == {"short", "asked"}
    card_ledger = card_ledger_of(nbmem.open(SNAPSHOTS / "oom.pickle.xz").session)
    oom = advise(card_ledger.session, card_ledger, report_of(card_ledger))
    assert [f.rule for f in oom.findings] == ["short"]


def test_a_muted_rule_is_not_in_the_report(idle):
    *_, report = idle
    told = replace(report, findings=advise(*idle).findings)
    assert [f.rule for f in unmuted(told).findings] == ["cached_memory"]
    mutes.mute("cached_memory", for_good=False)
    assert unmuted(told).findings == ()
    mutes.unmute("cached_memory")


def test_a_rule_is_muted_for_good_in_a_file_or_for_the_session():
    trace = nbmem.open(SNAPSHOTS / "reserved_unused.pickle.xz")
    assert trace.report().findings
    mutes.mute("cached_memory")
    assert mutes.path().read_text() == "cached_memory\n"
    assert not trace.report().findings
    assert trace.all_tips(), "--all asks the muted ones, too"
    mutes.unmute("cached_memory")
    assert mutes.path().read_text() == ""
    assert trace.report().findings
    mutes.mute("cached_memory", for_good=False)
    assert mutes.path().read_text() == ""
    assert not trace.report().findings
    mutes.unmute("cached_memory")
    assert trace.report().findings


def test_a_name_that_is_no_rule_gets_the_nearest():
    with pytest.raises(UsageError, match="Did you mean `cached_memory`"):
        rule_named("cache_memory")


def test_a_file_that_cannot_be_read_mutes_nothing():
    mutes.path().parent.mkdir(parents=True)
    mutes.path().write_bytes(b"\xff\xfecached_memory\n")
    assert mutes.muted() == frozenset()
    mutes.path().write_text("\ncard_empty\n")
    assert mutes.muted() == {"card_empty"}


def test_a_report_shows_three_tips_and_says_where_the_rest_is(idle):
    findings = tuple(finding(f"rule{i}", high=i) for i in range(5))
    report = replace(idle[2], findings=findings)
    for text in (render_text(report), render_html(report)):
        assert "rule2" in text
        assert "rule3" not in text
        assert "2 more: %nbmem tips" in text
    assert "rule4" in render_tips(findings, most=None)
    assert render_tips(()) == render_tips_html(()) == ""


HOSTILE = '<img src=x onerror="alert(1)">\x1b[31m</pre>'


def test_markup_in_a_name_is_shown_and_not_obeyed():
    said = finding(code=f"del {HOSTILE}")
    said = replace(said, title=HOSTILE, evidence=HOSTILE, rule="made_up")
    html = render_tips_html([said])
    assert "<img" not in html
    assert "\x1b" not in html
    assert html.count("</pre>") == 1
    assert "\x1b" not in render_tips([said])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_has_its_page_and_its_file(rule):
    title, *rest = rule.text.strip().splitlines()
    assert title.endswith(".")
    lines = [line.strip() for line in rest]
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    assert rule.check.__module__ == f"nbmem.report.tips.rules.{rule.name}"


def test_no_two_rules_have_one_name():
    assert len({rule.name for rule in RULES}) == len(RULES) == 54


BIG_DICT = """
state = {f"layer{i}": torch.zeros(256, device="cuda") for i in range(10_000)}
state["<b>bold</b>"] = torch.zeros(1 << 20, device="cuda")
"""


@pytest.mark.torch
def test_ten_thousand_tensors_in_a_dict_and_markup_in_a_key_do_no_harm(run):
    trace, _ = run(BIG_DICT, before="import torch\n\n")
    report = trace.report()
    assert report.notes == () or all("left out" not in note for note in report.notes)
    assert "<b>bold" not in render_html(report)
