"""Replays of what-ifs; an unchanged one equals the recording."""

from pathlib import Path

import numpy as np
import pytest

import nbmem.api.tracing as nbmem
from nbmem.report.analysis import card_ledger_of
from nbmem.report.analysis.cache_releases import releases_by_user, releases_for_requests
from nbmem.report.analysis.what_if import try_again, try_freeing, try_more, try_settings, with_conf
from tests.recorded_runs import load, session_of
from tests.tips.measure import program_runner

SNAPSHOTS = Path(__file__).parents[1] / "recordings" / "snapshots"
RUNS = ["vgg16_b32_sgdm", "gpt2_b4s512_adamw", "lstm_lm_b32s128_sgd", "dlrm_like_b2048_adagrad"]
SCENARIOS = ["cache_then_empty", "variable_lengths", "fragmentation", "streams", "oom"]


def recorded(name):
    return card_ledger_of(nbmem.open(SNAPSHOTS / f"{name}.pickle.xz").session)


@pytest.mark.parametrize("name", RUNS)
def test_the_replay_is_the_recording_to_the_byte(name):
    card_ledger = card_ledger_of(session_of(load(name)))
    outcome = try_settings(card_ledger)
    assert outcome.peak_reserved == card_ledger.reserved.max()
    assert outcome.peak_allocated == card_ledger.allocated.max()
    assert outcome.reserved == card_ledger.reserved[-1]
    assert (outcome.refused, outcome.retries) == (None, 0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_replay_of_a_snapshot_matches_except_for_its_unnamed_release(name):
    card_ledger = recorded(name)
    outcome = try_settings(card_ledger)
    assert outcome.peak_reserved == card_ledger.reserved.max()
    assert outcome.reserved == card_ledger.reserved[-1]
    assert outcome.peak_allocated == pytest.approx(card_ledger.allocated.max(), rel=0.001)


def test_a_limit_causes_the_retry_of_the_recording():
    card_ledger = recorded("retry")
    outcome = try_settings(card_ledger, limit=2_000 << 20)
    assert outcome.retries == 1
    assert outcome.peak_reserved == card_ledger.reserved.max()
    assert releases_for_requests(card_ledger.trace)
    assert not releases_by_user(card_ledger.trace)


def test_an_empty_cache_of_the_users_is_none_of_the_allocators():
    card_ledger = recorded("cache_then_empty")
    assert len(releases_by_user(card_ledger.trace)) == 1
    assert not releases_for_requests(card_ledger.trace)


def test_a_request_that_failed_fails_again_under_its_limit_and_not_without():
    card_ledger = recorded("oom")
    limit = int(card_ledger.reserved.max())
    assert try_settings(card_ledger, limit=limit).refused is not None
    assert try_settings(card_ledger).refused is None


def test_requests_behind_the_end_take_what_the_cache_has():
    card_ledger = recorded("reserved_unused")
    assert try_more(card_ledger, [30 << 20]) == (30 << 20, 0)
    assert try_more(card_ledger, [1000 << 20]) == (1000 << 20, 1000 << 20)


def test_an_iteration_again_takes_no_more_than_the_same_one():
    card_ledger = card_ledger_of(session_of(load("gpt2_b4s512_adamw")))
    last = [span for _, span in card_ledger.phases.spans if span.step == 2]
    first, end = last[0].first[0], last[-1].last[0]
    a = card_ledger.allocations
    kept = a.allocated_at[(a.allocated_at >= first) & (a.freed >= end)].tolist()
    again = try_again(card_ledger, first, end, once=kept, instead={})
    assert again.peak_reserved == card_ledger.reserved.max()


def test_what_is_freed_sooner_lets_the_next_block_be_cut_to_size():
    pytest.importorskip("torch")
    with program_runner() as run:
        trace, _ = run(
            "def mib(n): return torch.empty(int(n * 1048576), dtype=torch.uint8, device='cuda')\n"
            "first = mib(9)\nsecond = mib(10.5)  # all that is left of a segment of 20\ndel first",
            before="import torch",
        )
        card_ledger = card_ledger_of(trace.session)
    assert card_ledger.allocated.max() == 20 << 20
    a = card_ledger.allocations
    first, second = (
        np.flatnonzero(a.requested == 9 << 20),
        int(a.allocated_at[a.requested > 9 << 20][0]),
    )
    assert try_freeing(card_ledger, first, np.array([second])) == (20 << 20) - int(10.5 * (1 << 20))


def test_a_replay_that_is_not_the_recording_promises_nothing():
    card_ledger = recorded("variable_lengths")
    assert try_settings(card_ledger).peak_allocated != card_ledger.allocated.max()
    assert try_freeing(card_ledger, np.array([], int), np.array([], int)) is None


def test_a_setting_replaces_its_own_old_value_and_keeps_the_others():
    card_ledger = recorded("max_split")
    assert with_conf(card_ledger.trace, "max_split_size_mb:64") == "max_split_size_mb:64"
    both = with_conf(card_ledger.trace, "expandable_segments:True")
    assert both == "max_split_size_mb:128,expandable_segments:True"
