"""Tips for typical faults that a real card recorded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nbmem.api.tracing as nbmem
from nbmem.report.analysis import card_ledger_of, report_of
from nbmem.report.tips.engine import advise

SNAPSHOTS = Path(__file__).parents[1] / "recordings" / "snapshots"
MIB = 1 << 20

EXPECTED = {
    "checkpoint_kept": ["checkpoint_kept"],
    "loss_accumulation": ["graph_kept"],
    "cache_then_empty": ["fragmentation"],
    "reserved_unused": ["cached_memory"],
    "fragmentation": ["cached_memory"],
    "variable_lengths": ["fragmentation"],
    "oom": [],
    "retry": ["fragmentation"],
    "train_resnet50": [],
    "train_gpt2_amp": [],
    "expandable": [],
    "max_split": [],
    "roundup": [],
    "large_seg": [],
    "cuda_graph": [],
}


def session(name):
    return nbmem.open(SNAPSHOTS / f"{name}.pickle.xz").session


def advice(recorded, **options):
    card_ledger = card_ledger_of(recorded)
    return advise(recorded, card_ledger, report_of(card_ledger), **options)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_right_tip_comes_first_and_no_wrong_one(name):
    said = advice(session(name))
    assert [finding.rule for finding in said.findings] == EXPECTED[name]
    assert said.notes == ()


def test_the_checkpoint_is_found_by_the_line_that_loaded_it_and_its_bytes_are_exact():
    (finding,) = advice(session("checkpoint_kept")).findings
    # torch's own counters rose by so much while it was loaded (the recording's marks).
    assert finding.low == finding.high == 208_882_688 - 102_475_264
    assert "train.py:43" in finding.title


def test_the_graphs_of_the_accumulated_loss_are_counted():
    (finding,) = advice(session("loss_accumulation")).findings
    a_pass = 91_497_000  # what allocated rose by in each forward of the recording
    assert 4 * a_pass * 0.95 <= finding.low <= 4 * a_pass
    assert "4 forward passes" in finding.evidence


def test_empty_cache_was_predicted_to_the_byte():
    """Cut before the user's own empty_cache(): what would be said is what it then brought."""
    recorded = session("cache_then_empty")
    device = recorded.devices[0]
    card_ledger = card_ledger_of(recorded)
    gives = np.isin(device.events.action, (4, 6))
    at = int(np.flatnonzero(gives)[0])
    end = at + int(np.flatnonzero(~gives[at:])[0])
    measured = int(device.events.size[at:end].sum())
    assert measured == 1_027_604_480 - 331_350_016, "torch's own counters, before and after"
    assert card_ledger.releasable[at] == measured


def test_the_remedies_for_variable_lengths_are_simulated_not_believed():
    (finding,) = advice(session("variable_lengths")).findings
    assert finding.ground == "simulated"
    assert "expandable_segments:True" in finding.title
    assert "the longest batch first" in finding.evidence
    assert finding.low == 815_792_128


@pytest.mark.parametrize("name", ["expandable", "variable_lengths"])
def test_a_setting_in_force_is_not_proposed(name):
    recorded = session(name)
    settings = {**recorded.devices[0].settings, "expandable_segments": True}
    device = replace(recorded.devices[0], settings=settings)
    said = advice(replace(recorded, devices=(device,)), everything=True)
    assert not [f for f in said.findings if "expandable" in f.title]
