"""Every rule has a program with its tip and one without."""

import pytest

pytest.importorskip("torch", reason="the programs are torch programs")

from nbmem.report.tips.rules import RULES
from tests.tips import test_sharded
from tests.tips.near_misses import SILENT, SPOKEN


def test_every_rule_has_a_silent_and_a_speaking_program():
    names = [rule.name for rule in RULES]
    assert sorted(SILENT) == sorted(names)
    assert sorted(SPOKEN) == sorted(names)


@pytest.mark.parametrize("rule", SILENT)
def test_a_rule_is_silent_near_its_fault(run, rule):
    near = SILENT[rule]
    if near.before == test_sharded.BEFORE and test_sharded.OLD:
        pytest.skip("the card runs the newest FSDP alone")
    trace, _ = run(near.code, before=near.before, card=near.card)
    findings = trace.all_tips() if near.everything else trace.report().findings
    assert [f.title for f in findings if f.rule == rule] == []
    assert trace.report().peak.allocated >= 4 << 20, "large enough for a tip to be worth it"
