"""How often cards are read, and how many readings are kept."""

from types import SimpleNamespace

import pytest

from nbmem.capture.record import card_sampler
from nbmem.capture.record.card_sampler import INTERVAL_S, Sampler


@pytest.mark.parametrize("cards", [1, 2, 8])
def test_the_interval_doubles_once_when_every_card_is_thinned(monkeypatch, cards):
    monkeypatch.setattr(card_sampler, "MAX_SAMPLES", 4)
    monkeypatch.setattr(card_sampler, "_reserved", lambda _index: 0)
    monkeypatch.setattr(Sampler, "_used", lambda *_: (2, 1))
    sampler = Sampler(None, lambda _note: None)
    sampler._owners = SimpleNamespace(read=lambda _index: (), add=lambda *_: None)
    for _ in range(4):
        for index in range(cards):
            sampler._read_card(index)
    assert sampler._interval == 2 * INTERVAL_S
    assert {len(rows) for rows in sampler._rows.values()} == {2}
