"""DDP's buckets in a recording of a real card, to the byte."""

from dataclasses import replace

import numpy as np
import pytest

from nbmem.core.session.categories import Category
from nbmem.core.session.session import StorageLabels
from nbmem.report.ledger.card_ledger import CardLedger
from tests.recorded_runs import load, session_of

RESNET50 = 4 * 25_557_032
"""Bytes of its parameters, and so of its gradients."""


@pytest.fixture(scope="module")
def session():
    return session_of(load("ddp_resnet50_b32_sgdm"))


def communication_bytes(session, total):
    """Return bytes of communication for an owner with such parameters."""
    (trace,) = session.devices
    seen = trace.storage_labels
    more = {"position": 0, "addr": 0, "size": total, "category": Category.COMMUNICATION, "name": 0}
    columns = {
        name: np.append(getattr(seen, name), np.array(value, getattr(seen, name).dtype))
        for name, value in more.items()
    }
    names = ("model: gradients' buckets", *session.names[1:])
    told = replace(trace, storage_labels=StorageLabels(**columns))
    card_ledger = CardLedger(replace(session, devices=(told,), names=names))
    rows = np.flatnonzero(card_ledger.category == Category.COMMUNICATION)
    assert {card_ledger.name(row) for row in rows.tolist()} <= {names[0]}
    return card_ledger.allocations.requested[rows].tolist()


def test_the_bucket_of_the_first_pass_and_those_of_the_rest(session):
    rebuilt = [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]
    assert communication_bytes(session, RESNET50) == [RESNET50, *rebuilt]
    assert sum(rebuilt) == RESNET50


def test_a_block_one_byte_larger_or_smaller_is_no_bucket(session):
    assert communication_bytes(session, RESNET50 + 4) == []
    assert communication_bytes(session, RESNET50 - 4) == []
