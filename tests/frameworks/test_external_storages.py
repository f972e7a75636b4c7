"""Tensors over another library's memory are counted once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.api import live_tensors
from nbmem.api.render import read
from nbmem.capture.heap.heap_walk import Walk
from nbmem.core.session.categories import Category
from nbmem.core.session.holders import HeldStorage, Holder, HolderKind
from nbmem.core.session.session import Holders
from nbmem.views.live_tensors import render_top

MIB, GIB = 1 << 20, 1 << 30
ELSEWHERE = 0x302000000


@pytest.fixture
def trace(cupy):
    with virtual.activated("H100 80GB") as card:
        torch.empty(1, device="cuda")
        card.library_bytes = cupy.held = cupy.used = GIB
        names = {}
        with nbmem.trace("train", namespace=names) as t:
            names["kept"] = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
        yield t


def with_tensor(session, addr, size):
    """Add a storage that the notebook's `shared` shows."""
    device, texts = session.devices[0], (*session.names, "shared", "(4, 1048576) uint8")
    row = {
        "addr": addr,
        "size": size,
        "form": len(texts) - 1,
        "kind": HolderKind.NAME,
        "root": len(texts) - 2,
        "path": len(texts) - 2,
    }
    held = Holders(
        **{
            name: np.append(column, np.array(row[name], column.dtype))
            for name, column in device.holders.columns()
        }
    )
    return replace(session, devices=(replace(device, holders=held),), names=texts)


def test_an_external_tensor_is_named_and_counted_once(trace):
    before = read(trace.session, None).report
    assert not [note for note in before.notes if "not torch's own" in note]
    report = read(with_tensor(trace.session, ELSEWHERE, 4 * MIB), None).report
    (note,) = [note for note in report.notes if "not torch's own" in note]
    assert note == (
        "4.0 MiB that tensors of torch's show are not torch's own: shared (4, 1048576) uint8. They "
        "were shared without a copy (dlpack, IPC) by CuPy or another process, where they are "
        "counted."
    )
    assert report.ledger_at_end == before.ledger_at_end
    assert report.ledger_at_end[Category.FRAMEWORKS] == GIB


def test_a_view_that_begins_inside_a_block_is_torchs(trace):
    session = trace.session
    inside = int(session.devices[0].end.blocks.addr[0]) + 4096
    report = read(with_tensor(session, inside, 2 * MIB), None).report
    assert not [note for note in report.notes if "not torch's own" in note]


def test_top_lists_it_beside_torchs_own(trace, monkeypatch):
    shared = live_tensors.walk({}).by_device.get(0, ())
    way = Holder(HolderKind.NAME, "shared", "shared")
    foreign = HeldStorage(addr=ELSEWHERE, size=64 * MIB, form="(64,) uint8", holders=(way,))
    found = Walk(by_device={0: (foreign, *shared)})
    monkeypatch.setattr(live_tensors, "walk", lambda namespace: found)
    held = live_tensors.live_now({})[0]
    assert (held[0].name, held[0].category, held[0].block) == ("shared", Category.FRAMEWORKS, 0)
    text = render_top(held, 10, "Card 0")
    assert "8.0 MiB requested of 8.0 MiB allocated now" in text
    assert "64.0 MiB  other frameworks  shared (64,) uint8" in text
