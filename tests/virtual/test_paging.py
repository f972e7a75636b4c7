"""Unified memory: pages of a step, counted by hand."""

import pytest
import torch

from nbmem import virtual
from nbmem.core.interconnect import link_of
from nbmem.core.units import MIB
from nbmem.virtual.paging import accesses, driver, ideal
from nbmem.virtual.paging.accesses import PAGE, AccessKind, AccessLog, TransferredBytes

PIECE = ideal.PIECE


@pytest.fixture
def gpu():
    with virtual.activated("T4") as gpu:
        gpu.access_log = AccessLog()
        yield gpu


def access_log_of(*steps, unit=PAGE):
    """Log accesses: `a` reads, `+a` takes, `=a` writes, `-a` frees."""
    kinds = {"+": AccessKind.ALLOCATED, "-": AccessKind.FREED, "=": AccessKind.WRITTEN}
    found = AccessLog()
    for step in steps:
        for word in step.split():
            block = (1 + ord(word[-1]) - ord("a")) * unit
            found.note(kinds.get(word[0], AccessKind.READ), block, unit)
        found.note(AccessKind.STEP)
    return found


def test_what_fits_is_not_paged():
    twice = access_log_of("+a +b +c", "a b c", "a b c")
    assert driver.paged(twice, 3 * PAGE) == ideal.paged(twice, 3 * PAGE) == TransferredBytes(0, 0)


def test_the_driver_turns_round_and_round_where_one_page_is_missing():
    # The page that came first is the one that is wanted next: all three come and go in each step.
    scan = access_log_of("+a +b +c", "a b c", "a b c")
    assert driver.paged(scan, 2 * PAGE) == TransferredBytes(3 * PAGE, 3 * PAGE)
    assert driver.paged(scan, 2 * PAGE, by_use=True) == TransferredBytes(3 * PAGE, 3 * PAGE)


def test_the_driver_does_not_see_that_a_page_is_used():
    # `a` is used all the time. It came first, so the driver lets it go first.
    busy = access_log_of("+a +b a +c a", "b a c a", "b a c a")
    by_arrival = driver.paged(busy, 2 * PAGE)
    by_use = driver.paged(busy, 2 * PAGE, by_use=True)
    assert by_use == TransferredBytes(2 * PAGE, 2 * PAGE)  # b and c take turns
    assert by_arrival.total > by_use.total


def test_at_best_what_is_next_used_last_leaves():
    size = PIECE
    scan = access_log_of("+a +b +c", *["a b c"] * 6, unit=size)
    # Of three two stay, in turns: three come in two steps, where the driver brings six.
    found = ideal.paged(scan, 2 * size)
    assert size <= found.to_card <= 2 * size < driver.paged(scan, 2 * size).to_card
    # What was only read since it left has a copy on the host: it needs no other.
    assert found.to_host == 0


def test_at_best_what_dies_costs_nothing():
    passing = access_log_of("+a +b -b +c -c", "a +b -b +c -c", "a +b -b +c -c", unit=PIECE)
    assert ideal.paged(passing, 2 * PIECE) == TransferredBytes(0, 0)
    # The driver knows nothing of it: pages of a pool travel, whatever is in them.
    assert driver.paged(passing, 2 * PIECE).total > 0


def test_one_step_alone_is_all_that_there_is():
    assert driver.paged(access_log_of("+a +b +c a"), 2 * PAGE) == TransferredBytes(PAGE, 2 * PAGE)


def test_operators_touch_what_they_read_and_write(gpu):
    a = torch.empty(1024, 1024, device="cuda")
    b = torch.empty(1024, 1024, device="cuda")
    before = len(gpu.access_log.kind)
    b[512:].add_(a[512:])
    rows = list(zip(gpu.access_log.kind, gpu.access_log.addr, gpu.access_log.size, strict=True))[
        before:
    ]
    half = 2 * MIB
    assert (AccessKind.READ, a.data_ptr() + half, half) in rows
    assert (AccessKind.WRITTEN, b.data_ptr() + half, half) in rows
    assert len(rows) == 2  # the views themselves touch nothing


def test_what_is_taken_and_given_back_is_noted(gpu):
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    addr = tensor.data_ptr()
    del tensor
    gpu.synchronize()
    rows = list(zip(gpu.access_log.kind, gpu.access_log.block, strict=True))
    assert rows == [(AccessKind.ALLOCATED, addr), (AccessKind.FREED, addr)]


def test_weights_larger_than_the_card_come_in_every_step(gpu):
    layers = [torch.nn.Linear(1024, 4096, bias=False, device="cuda") for _ in range(4)]
    x = torch.randn(8, 1024, device="cuda")
    for _ in range(6):
        with torch.no_grad():
            for layer in layers:
                layer(x)
        gpu.access_log.note(AccessKind.STEP)
    weights = 4 * 16 * MIB
    assert driver.paged(gpu.access_log, weights + 32 * MIB).total == 0
    # Half of them fit, and each is read once in a step, always in the same order.
    paged = driver.paged(gpu.access_log, weights // 2)
    assert weights <= paged.to_card <= weights + 8 * MIB
    best = ideal.paged(gpu.access_log, weights // 2 + 2 * MIB)
    assert 16 * MIB <= best.to_card <= weights - 16 * MIB
    assert best.to_host < MIB  # nobody writes to weights here


def test_a_run_without_an_end_is_noted_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(accesses, "MAX_TOUCHES", 2)
    found = access_log_of("a b c")
    assert found.full
    assert len(found.kind) == 2


@pytest.mark.parametrize(
    ("capability", "name"),
    [((7, 5), "PCIe 3.0"), ((8, 9), "PCIe 4.0"), ((12, 0), "PCIe 5.0"), ((3, 7), None)],
)
def test_the_link_follows_from_the_capability(capability, name):
    link = link_of(capability)
    assert (link and link.name) == name
