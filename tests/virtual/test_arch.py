"""Effects of a compute capability, listed or not.

torch_requests.csv has what torch 2.13.0+cu130 itself asks its allocator for: its C++, CUB's too,
with the CUDA driver replaced by one that describes a card and runs no kernel. Registers and shared
memory of the kernels, which CUB asks for, are read from torch's library.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nbmem import virtual
from nbmem.virtual.arch import ARCHS, arch_of
from nbmem.virtual.card_names import find_card
from nbmem.virtual.cards import CARDS
from nbmem.virtual.warnings import unlisted
from tests.virtual.allocation_history import requested_sizes

with Path(__file__).with_name("torch_requests.csv").open(encoding="utf-8") as file:
    ROWS = {row.pop("call"): row for row in csv.DictReader(file)}
RECORDED = {
    card: {call: [int(size) for size in row[card].split()] for call, row in ROWS.items()}
    for card in next(iter(ROWS.values()))
}
"""By card and call, the sizes that it requests."""
CALLS = {
    "sort": lambda x: x.sort(),
    "unique": torch.unique,
    "inverse": lambda x: torch.unique(x, return_inverse=True),
    "counts": lambda x: torch.unique(x, return_counts=True),
    "nonzero": torch.nonzero,
    "cumsum": lambda x: x.cumsum(-1),
    "topk": lambda x: x.topk(5),
    "sum": torch.sum,
    "any": torch.any,
    "count": torch.count_nonzero,
    "logsumexp": lambda x: x.logsumexp(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "dist": lambda x: torch.dist(x, x),
    "amax": lambda x: x.amax(0),
    "argmax": torch.argmax,
    "std": torch.std,
}


def scratch_requests(call, *tensors):
    """Return the sizes that a call requests, in order.

    The result of `nonzero` is left out.
    """
    sizes, results = requested_sizes(lambda: call(*tensors))
    if call is torch.nonzero:
        sizes.remove(results.nbytes)
    return sizes


@pytest.mark.filterwarnings("ignore::nbmem.virtual.NbmemWarning")
@pytest.mark.parametrize("card", RECORDED)
def test_a_call_asks_for_what_torch_itself_asks_for(card):
    with virtual.activated(card):
        found = {}
        for name in RECORDED[card]:
            call, dtype, *sizes = name.split()
            tensor = torch.empty([int(n) for n in sizes], dtype=getattr(torch, dtype)).cuda()
            found[name] = scratch_requests(CALLS[call], tensor)
    assert found == RECORDED[card]


def test_every_card_has_a_record_of_its_own():
    assert {card.capability for card in CARDS} <= set(ARCHS)
    assert all(card.arch.capability == card.capability for card in CARDS)


@pytest.mark.parametrize(
    ("asked_for", "taken"),
    [
        ((9, 1), (9, 0)),
        ((10, 1), (10, 0)),
        ((12, 9), (12, 1)),
        ((99, 0), (12, 1)),  # newer than all
        ((7, 2), (7, 0)),
        ((5, 2), (6, 0)),  # older than all
    ],
)
def test_an_unlisted_capability_is_like_the_nearest_before(asked_for, taken):
    assert arch_of(asked_for).capability == taken


def test_a_card_of_an_unlisted_capability_works_and_says_so_once():
    coming = replace(find_card("B200"), key="X100", capability=(99, 0))
    with virtual.activated(coming) as gpu:
        with pytest.warns(virtual.NbmemWarning, match="not know compute capability 99.0: .*12.1"):
            torch.ones(4).cuda()
        x = torch.ones(64, 64, device="cuda")
        _ = x @ x, x.sum()
        assert gpu.workspaces.cublas_size == 32 << 20
        assert torch.cuda.get_device_capability() == (99, 0)
        assert gpu.notes.count(unlisted((99, 0), (12, 1))) == 1


def test_a_listed_card_has_no_such_note():
    with virtual.activated("B200") as gpu:
        torch.ones(4).cuda()
        assert not [note for note in gpu.notes if "compute capability" in note]


@pytest.mark.parametrize(
    ("card", "workspace"), [("T4", 8_519_680), ("L4", 8_519_680), ("RTX 5090", 32 << 20)]
)
def test_a_workspace_of_cublas_is_that_of_the_architecture(card, workspace):
    with virtual.activated(card) as gpu:
        assert gpu.workspaces.cublas_size == workspace
