"""NCCL's own bytes, where torch and NCCL tell them."""

from types import SimpleNamespace

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.capture.distributed.communicators import communicators
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_parts import meaning_of
from nbmem.report.ledger.card_ledger import CardLedger

c10d = pytest.importorskip("torch.distributed.distributed_c10d")
MIB = 1 << 20
pytestmark = pytest.mark.torch


class Backend:
    """A backend that counts as ProcessGroupNCCL of torch 2.13 does."""

    def __init__(self, persist, more, *, suspended=0):
        self.stats = {"suspend": more, "persist": persist, "total": persist + more}
        self.stats["suspended"] = suspended

    def memory_stats(self):
        return self.stats


class Group:
    def __init__(self, backend, group_desc=""):
        self.backend, self.group_desc = backend, group_desc

    def _get_backend(self, device):
        assert device == torch.device("cuda", 0)
        return self.backend


@pytest.fixture
def world(monkeypatch):
    def put(*groups):
        names = {group: str(number) for number, group in enumerate(groups)}
        monkeypatch.setattr(c10d, "_world", SimpleNamespace(pg_names=names))

    with virtual.activated("T4"):
        torch.ones(1, device="cuda")
        yield put


def names_and_bytes():
    return [(one["name"], one["held"]) for one in communicators(torch)]


def test_each_communicator_is_read_once(world):
    shared = Backend(3 * MIB, MIB)
    world(Group(shared, "default_pg"), Group(shared, "the same"), Group(Backend(MIB, 0)))
    assert names_and_bytes() == [("default_pg", 4 * MIB), ("2", MIB)]


def test_what_was_suspended_is_not_on_the_card(world):
    world(Group(Backend(MIB, 9 * MIB, suspended=1)))
    assert names_and_bytes() == [("0", MIB)]


@pytest.mark.parametrize("stats", [None, {}, {"suspended": 0, "total": -1}, {"suspended": 0}])
def test_odd_counters_are_left_out(world, stats):
    odd = Backend(0, 0)
    odd.stats = stats
    world(Group(odd), Group(object()), Group(Backend(MIB, 0)))
    assert names_and_bytes() == [("2", MIB)]


def test_gloo_does_not_tell_and_no_group_is_fine():
    with virtual.activated("T4"):
        assert communicators(torch) == []
        torch.distributed.init_process_group(
            "gloo", rank=0, world_size=1, store=torch.distributed.HashStore()
        )
        try:
            assert communicators(torch) == []
        finally:
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("held", "told"), [(8 * MIB, True), (1 << 40, False)])
def test_the_ledger_at_the_end_has_them_in_context_and_libraries(world, held, told):
    world(Group(Backend(held, 0), "default_pg"))
    with nbmem.trace("cell", namespace={}) as trace:
        x = torch.ones(MIB, device="cuda")
    del x
    ledger = CardLedger(trace.session)
    at_end = ledger.ledger(ledger.events)
    parts = dict(at_end.parts_of(Category.CONTEXT))
    rest = at_end[Category.CONTEXT] - held
    assert parts == ({"NCCL default_pg": held, "other": rest} if told else {})
    assert "communicator" in meaning_of("NCCL default_pg")
    assert not ledger.ledger(0).parts_of(Category.CONTEXT)
