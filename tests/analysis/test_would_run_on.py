"""The answers for other cards against runs of the same program on them."""

import dataclasses

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.allocator.cublas import WORKSPACE, WORKSPACE_HOPPER
from nbmem.api import tracing
from nbmem.api.common_cards import COMMON, OF_AMD, card_size, common_cards
from nbmem.core.session.categories import Category
from nbmem.core.units import GIB, MIB
from nbmem.report.analysis import card_ledger_of
from nbmem.report.analysis.oom.failed_request import cases, request_that_ended
from nbmem.report.analysis.would_run_on import would_run_on as answers
from nbmem.report.estimate_results import MARGIN
from tests.estimate.small_cards import small_card

ROOM = small_card(12_000)


def training(width=2048, depth=6, batch=8192, steps=2):
    """Train a net of linear layers."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    net = nn.Sequential(*layers).cuda()
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        net(torch.randn(batch, width, device="cuda")).sum().backward()
        opt.step()
        opt.zero_grad()


def growing():
    """Ask for more each time: torch must release what it cached."""
    for size in range(100, 900, 100):
        torch.empty(size * MIB, dtype=torch.uint8, device="cuda")


def pieces():
    """Free every other tensor, and ask for larger ones."""
    held = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda") for _ in range(40)]
    del held[::2]
    held += [torch.empty(50 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]


def kept():
    """Keep everything."""
    return [torch.empty(100 * MIB, dtype=torch.uint8, device="cuda") for _ in range(11)]


def emptied():
    """Give the cache back between two large tensors."""
    for size in (900, 500, 1000):
        held = torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
        del held
        torch.cuda.empty_cache()


def record(program, card):
    """Run a program on a card; return the ledger of its recording, and its error."""
    error = None
    with virtual.activated(card, defer=True):
        trace = tracing.trace("program", namespace={})
        trace.start()
        try:
            program()
        except torch.OutOfMemoryError as err:
            error = err.with_traceback(None)
        trace.stop(error)
    return card_ledger_of(trace.session), error


def runs(program, card):
    """Return whether a program runs on a card."""
    with virtual.activated(card, defer=True):
        try:
            program()
        except torch.OutOfMemoryError:
            return False
    return True


def sized(mib):
    """Return what a process finds on a T4 with so many MiB."""
    return dataclasses.replace(card_size(small_card(mib)), key=str(mib))


@pytest.mark.parametrize("program", [training, growing, pieces, kept, emptied])
def test_each_size_is_answered_as_the_program_runs_on_it(program):
    card_ledger, _ = record(program, ROOM)
    sizes = sorted({*range(600, 2400, 150), 1370, 1380, 1390, 1400})
    found = answers(card_ledger, [sized(mib) for mib in sizes], sized(12_000), MARGIN)
    truth = {str(mib): runs(program, small_card(mib)) for mib in sizes}
    assert {one.card: one.fits for one in found.cards} == truth
    assert {True, False} == set(truth.values())
    assert all(limit.startswith("What the process held") for limit in found.limits)


def test_bytes_to_spare_and_short_are_exact_where_nothing_is_replayed():
    card_ledger, _ = record(kept, ROOM)
    card = sized(12_000)
    large, small = answers(card_ledger, [card, sized(1000)], card, MARGIN).cards[::-1]
    used = 1100 * MIB + card.context
    assert (large.fits, large.spare, large.exact) == (True, 12_000 * MIB - used, True)
    assert (small.fits, small.short, small.spare) == (False, used - 1000 * MIB, None)


def test_a_card_without_the_margin_only_just_fits():
    card_ledger, _ = record(kept, ROOM)
    card = sized(12_000)
    mib = (1100 * MIB + card.context) // MIB + 10
    (one,) = answers(card_ledger, [sized(mib)], card, MARGIN).cards
    assert (one.fits, one.margin, one.spare) == (True, False, 10 * MIB)


def test_workspaces_have_the_other_cards_size():
    card_ledger, _ = record(training, ROOM)
    own, hopper = card_size(ROOM), card_size(virtual.find_card("H100"))
    found = answers(card_ledger, [hopper], own, MARGIN).cards[0]
    workspaces = int((card_ledger.category == Category.WORKSPACE).sum())
    assert workspaces == 2  # the caller's and the engine's
    more = workspaces * (WORKSPACE_HOPPER - WORKSPACE)
    reserved = int(card_ledger.reserved.max()) + more
    outside = hopper.context + 2 * hopper.cublas
    assert found.spare == hopper.total - hopper.unowned - outside - reserved
    assert not found.exact


def test_replays_end_where_they_would_take_too_long():
    card_ledger, _ = record(growing, ROOM)
    cards = [sized(1500), sized(600), sized(8000)]
    found = answers(card_ledger, cards, sized(12_000), MARGIN, most_events=3)
    assert [one.fits for one in found.cards] == [False, None, True]
    assert "events are replayed for one report" in found.cards[1].how


def test_the_recorded_card_and_larger_ones_need_no_replay():
    card_ledger, _ = record(growing, small_card(1000))
    cards = [sized(950), sized(1000), sized(1200)]
    found = answers(card_ledger, cards, sized(1000), MARGIN, most_events=3).cards
    assert [one.fits for one in found] == [None, True, True]
    outside = cards[1].context + cards[1].unowned
    assert found[1].spare == 1000 * MIB - outside - int(card_ledger.reserved.max())
    assert "ran on a card with less memory" in found[2].how


def test_a_convolutions_work_area_decides_nothing():
    with virtual.activated(ROOM, defer=True):
        net = nn.Conv2d(64, 64, 3, padding=1).cuda()
        with tracing.trace("convolution", namespace={"net": net}) as trace:
            net(torch.randn(8, 64, 64, 64, device="cuda"))
            torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")  # freed at once, as they are
        del net
    found = answers(card_ledger_of(trace.session), [sized(600), sized(4000)], sized(12_000), MARGIN)
    assert [one.fits for one in found.cards] == [None, True]
    assert "work areas of its convolutions" in found.cards[0].how


def test_bfloat16_is_not_decided_where_attention_has_other_kernels():
    with virtual.activated("RTX 4090", defer=True):
        held = {"x": torch.empty(5, 7, dtype=torch.bfloat16, device="cuda")}
        with tracing.trace("half", namespace=held) as trace:
            held["y"] = held["x"] * 2
        del held
    cards = [card_size(virtual.find_card(key)) for key in ("T4", "RTX 3060 12GB", "RTX 4090")]
    found = answers(card_ledger_of(trace.session), cards, cards[2], MARGIN)
    assert {one.card: one.fits for one in found.cards} == {
        "RTX 3060 12GB": True,
        "T4": None,
        "RTX 4090": True,
    }


def test_what_follows_a_failed_request_is_known_from_an_earlier_step():
    def program():
        held = []
        net = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            net(torch.randn(8192, 1024, device="cuda")).sum().backward()
            opt.step()
            opt.zero_grad()
            if step == 1:
                held.append(torch.empty(400 * MIB, dtype=torch.uint8, device="cuda"))

    card_ledger, error = record(program, small_card(640))
    assert error is not None
    found = answers(card_ledger, [sized(640), sized(4000)], sized(640), MARGIN)
    assert [one.fits for one in found.cards] == [False, True]
    assert not any(one.exact for one in found.cards)


def test_what_follows_a_first_request_is_not_known():
    card_ledger, error = record(kept, small_card(1000))
    assert error is not None
    found = answers(card_ledger, [sized(1000), sized(1100), sized(4000)], sized(1000), MARGIN)
    assert [one.fits for one in found.cards] == [False, None, None]
    assert found.request_only


def test_a_trace_answers_for_the_common_cards():
    with virtual.activated("RTX 4090", defer=True):
        with tracing.trace("kept", namespace={}) as trace:
            held = torch.empty(14 * GIB, dtype=torch.uint8, device="cuda")
        del held
        found = trace.would_run_on()
    assert {one.card for one in found} == set(COMMON)
    assert [one.total for one in found] == sorted(one.total for one in found)
    assert [one.card for one in found if not one.fits] == ["RTX 3060 12GB"]
    assert trace.report().would_run_on.cards == found


def test_a_card_of_another_maker_is_compared_with_none():
    card_ledger, _ = record(kept, ROOM)
    trace = card_ledger.trace
    info = dataclasses.replace(trace.info, name="AMD Instinct MI300X", torch="2.9.0+rocm6.4")
    session = dataclasses.replace(
        card_ledger.session, devices=(dataclasses.replace(trace, info=info),)
    )
    found = common_cards(card_ledger_of(session))
    assert (found.cards, found.limits) == ((), (OF_AMD,))


def test_all_tips_try_no_other_card(monkeypatch):
    with virtual.activated("RTX 4090", defer=True):
        with tracing.trace("kept", namespace={}) as trace:
            held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
        del held
    asked = []
    monkeypatch.setattr("nbmem.api.common_cards.common_cards", asked.append)
    trace.all_tips()
    assert asked == []
    assert trace.report().would_run_on is None
    assert len(asked) == 1


def test_the_request_that_ended_a_program_is_the_last_of_its_failed_ones():
    card_ledger, error = record(kept, small_card(1000))
    assert error is not None
    last = cases(card_ledger)[-1]
    found = request_that_ended(card_ledger)
    assert (found.index, found.size, found.capacity) == (last.index, last.size, last.capacity)
    assert not found.caught
    assert not last.caught
    served, _ = record(kept, ROOM)
    assert request_that_ended(served) is None
