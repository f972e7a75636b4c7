"""Largest batch on cards that recorded H100 runs just fill.

The requests that were recorded are served again with less and less memory. The least with which all
are served makes a card that holds the recorded batch, and hardly one sample more.
"""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from nbmem import virtual
from nbmem.core.units import MIB
from nbmem.report.analysis import card_ledger_of
from nbmem.report.analysis.what_if import try_settings
from tests.accuracy.one import Run
from tests.recorded_runs import load, session_of


class Varied(Run):
    """A recorded workload with another batch."""

    def __init__(self, name, rows):
        super().__init__(name)
        recorded = self.build

        def build():
            model, batch, loss = recorded()
            return (
                model,
                lambda: tuple(t[:1].repeat(rows, *[1] * (t.dim() - 1)) for t in batch()),
                loss,
            )

        self.build = build


def sized(tensor, rows):
    return tensor[:1].repeat(rows, *[1] * (tensor.dim() - 1))


def least(card_ledger, most):
    """Return the bytes that the recorded requests need reserved, to a MiB."""
    low, high = 0, most // MIB
    while high - low > 1:
        middle = (low + high) // 2
        served = try_settings(card_ledger, limit=middle * MIB).refused is None
        low, high = (low, middle) if served else (middle, high)
    return high * MIB


@pytest.mark.parametrize(
    ("name", "batch"),
    [("nn_transformer_b32s256_adam", 32), ("unet_b8_adam", 8), ("lstm_lm_b32s128_sgd", 32)],
)
def test_the_largest_batch_is_the_recorded_one_within_one_step(here, name, batch):
    raw = load(name)
    context = max(bound["process"] - bound["reserved"] for bound in raw["bounds"])
    reserved = least(
        card_ledger_of(session_of(raw)), max(b["peak_reserved"] for b in raw["bounds"])
    )
    total = context + reserved
    card = dataclasses.replace(virtual.find_card("H100 80GB"), total_bytes=total, nvml_total=total)
    near = (batch - 3, batch + 3)
    found = here.fit(
        lambda rows: Varied(name, rows).go(), card, start=batch, between=near, margin=0
    )
    assert abs(found.best - batch) <= 1
