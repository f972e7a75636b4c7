"""Tips on freed blocks that wait for another stream."""

from dataclasses import replace

import pytest

from nbmem.report.analysis import card_ledger_of, report_of
from nbmem.report.tips.engine import advise
from tests.tips.programs import MODEL

torch = pytest.importorskip("torch", reason="the programs are torch programs")

LATE = """
side = torch.cuda.Stream()
for _ in range(16):
    batches = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    {before}
    del batches
    {behind}
"""
RECORDED = "batches.record_stream(side)"


def as_on_a_card(trace, **facts):
    """Return the tips as on a real card, with the streams' ends."""
    session = trace.session
    devices = tuple(replace(d, info=replace(d.info, virtual=False)) for d in session.devices)
    session = replace(session, devices=devices, facts={**session.facts, **facts})
    card_ledger = card_ledger_of(session)
    findings = advise(session, card_ledger, report_of(card_ledger), everything=True).findings
    return [finding for finding in findings if finding.rule == "late_stream"]


def reserved(trace):
    return int(card_ledger_of(trace.session).reserved.max())


def test_what_waits_is_told_with_what_would_be_reserved(run):
    late, _ = run(LATE.format(before=RECORDED, behind=""), before=MODEL)
    (mine,) = as_on_a_card(late)
    free, _ = run(LATE.format(before="", behind=""), before=MODEL)
    measured = reserved(late) - reserved(free)
    assert measured == 15 * 64 << 20
    assert (mine.low, mine.high) == (0, measured)
    assert "960.0 MiB were freed, but another stream still used" in mine.evidence
    assert mine.code is None
    assert as_on_a_card(free) == []


def test_where_streams_are_waited_for_nothing_is_said(run):
    waited, _ = run(LATE.format(before=RECORDED, behind="torch.cuda.synchronize()"), before=MODEL)
    assert as_on_a_card(waited) == []


def test_on_a_virtual_card_nobody_knows(run):
    late, _ = run(LATE.format(before=RECORDED, behind=""), before=MODEL)
    assert not [f for f in late.all_tips() if f.rule == "late_stream"]


def test_fsdp_without_its_limit_gets_the_line_that_sets_it(run):
    late, _ = run(LATE.format(before=RECORDED, behind=""), before=MODEL)
    fsdp = {
        "name": "model", "class": "FullyShardedDataParallel", "bytes": 1, "float32_bytes": 1,
        "training": True, "parameters": 1, "blocks": [], "relu_not_inplace": 0, "called": True,
        "limit_all_gathers": False,
    }  # fmt: skip
    (mine,) = as_on_a_card(late, modules=[fsdp])
    assert "fsdp_modules(model)" in mine.code
    compile(mine.code, "pasted.py", "exec")
    (mine,) = as_on_a_card(late, modules=[fsdp | {"limit_all_gathers": True}])
    assert mine.code is None
