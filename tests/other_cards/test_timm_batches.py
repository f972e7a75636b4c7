"""timm's batches: the one tried before, and two runs that decide."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="the models are torch programs")

from tests.other_cards import timm_batches
from tests.other_cards.timm_batches import Survivor, Verdict, next_larger, table


def _decayed(batch):
    """Return what timm's script tries after a batch that ran out (timm/utils/decay_batch.py)."""
    power = 2 ** (math.log(batch - 1) // math.log(2))
    step = max(power // 2, 1)
    return int(power + (batch - power - 1) // step * step)


def _survivor(**changed):
    fields = {
        "model": "m", "card": "T4", "train": True, "channels_last": True, "batch": 64,
        "size": 64, "parameters": 1.0, "torch": "1.12", **changed,
    }  # fmt: skip
    return Survivor(**fields)


def test_the_next_larger_batch_is_the_one_that_was_tried_before():
    batch = 1024
    while batch > 1:
        smaller = _decayed(batch)
        assert next_larger(smaller) == batch
        batch = smaller


def test_each_row_is_below_the_first_batch_that_was_tried():
    rows = timm_batches.survivors()
    assert {row.card for row in rows} == {"RTX 3090", "RTX 4090", "RTX 5090"}
    for row in rows:
        assert row.is_old is row.train
        assert 1 < row.batch < (1024 if row.card == "RTX 5090" else 512)


def test_a_batch_and_the_next_one_are_run(monkeypatch):
    """Run a weight of 1 GiB, and 64 MiB of results an image in two steps at once."""
    made = []

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(2**28, device="cuda"))

        def forward(self, images):
            made.append(len(images))
            return torch.empty(len(images), 2**24, device="cuda")

    monkeypatch.setattr(timm_batches, "_model", lambda row: Network())
    small = timm_batches.run(_survivor(train=False, batch=64, channels_last=False))
    assert (small.runs, small.next_runs, small.error) == (True, True, "")
    assert made == [64] * 3 + [96] * 3
    large = timm_batches.run(_survivor(train=False, batch=96))
    assert (large.runs, large.next_runs) == (True, False)


def test_a_model_that_cannot_be_built_is_an_error(monkeypatch):
    def refuse(row):
        raise ValueError("2 parameters")

    monkeypatch.setattr(timm_batches, "_model", refuse)
    assert timm_batches.run(_survivor()).error == "ValueError: 2 parameters"


def test_verdicts_are_counted_card_by_card():
    old, new = _survivor(), _survivor(torch="2.9", train=False)
    found = [
        Verdict(row=old, runs=True, next_runs=False),
        Verdict(row=old, runs=True, next_runs=True),
        Verdict(row=old, runs=False, next_runs=False),
        Verdict(row=old, error="x"),
        Verdict(row=new, runs=True, next_runs=False),
    ]
    assert table(found)[2:] == [
        "| T4 | training, torch 1.12 | 3 | 2 | 2 | 1 |",
        "| T4 | inference, torch 2.9 | 1 | 1 | 1 | 1 |",
    ]
