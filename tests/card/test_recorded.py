"""Recorded answers of an H100 beside those of its virtual card.

The recording holds `make card`'s parts of that time (atlas, samples, workspaces, context, balance,
readings), steps of the same models, convolutional networks, compiled workloads and scripts as
tests/oracle records them ("networks", "held out", "zoo", "compiled", "strangers": docs/accuracy.md
and tests/oracle/README.md say what they were), milliseconds of traced steps ("overhead"), and what
NVML counts by how many processes are on the card ("contexts").
"""

import json
import lzma
import re
from pathlib import Path

import pytest
import torch

from nbmem import virtual
from nbmem.capture.devices.nvml_readings import unattributed_bytes
from nbmem.virtual.card_names import find_card
from nbmem.virtual.hardware.cudnn import client
from tests.card import atlas
from tests.card.allocator_requests import requests_by_moment, warm_up_libraries

CONVOLUTION = re.compile(
    r"conv2d (\w+) (\d+)x(\d+)x(\d+)x\d+ to (\d+) kernel (\d+) stride (\d+) groups (\d+) (\w+)"
)
FILE = Path(__file__).parents[1] / "recordings" / "card" / "h100_torch_2.11.json.xz"


@pytest.fixture(scope="module")
def recorded():
    return json.loads(lzma.open(FILE).read())


def test_the_virtual_card_asks_for_what_the_card_asked_for(recorded):
    """150 operators and optimizers of everyday: first and later calls, forward and backward."""
    with virtual.activated("H100 80GB", release="2.11.0"):
        found = {name: json.loads(json.dumps(call())) for name, call in atlas.cases()}
    assert len(found) == 150
    assert [name for name, sizes in found.items() if sizes != recorded["atlas"][name]] == []


def test_the_cards_totals_are_the_tables(recorded):
    card, measured = find_card("H100 80GB"), recorded["context"]["card"]
    assert (measured["total"], measured["nvml_total"]) == (card.total_bytes, card.nvml_total)
    assert measured["driver"] == card.driver_bytes
    assert recorded["context"]["libraries"]["context"] == card.context_bytes


def test_unattributed_memory_is_separated_with_any_number_of_processes(recorded):
    for row in recorded["contexts"]:
        held = dict.fromkeys(range(row["processes"]), 0)
        if held:
            held[0] = row["listed"]
        in_use = row["total"] - row["free"] - row["reserved"]
        assert unattributed_bytes(in_use, held) == row["nobody"], row["label"]


def convolved(name):
    """Return recorded requests of a later convolution and its backward."""
    dtype, *sizes, layout = CONVOLUTION.match(name).groups()
    batch, inner, side, outer, kernel, stride, groups = map(int, sizes)

    def make():
        shapes = (batch, inner, side, side), (outer, inner // groups, kernel, kernel)
        made = [torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) for shape in shapes]
        return [
            one.contiguous(memory_format=getattr(torch, layout)).requires_grad_() for one in made
        ]

    padding = kernel // 2 if stride < kernel else 0
    found = requests_by_moment(
        make, lambda x, w: torch.conv2d(x, w, None, stride, padding, 1, groups)
    )
    return {moment: sizes for moment, sizes in found.items() if moment.startswith("later")}


@pytest.mark.parametrize("equal", [383 if client.library_path() else 228])
def test_convolutions_take_what_the_card_took(recorded, equal):
    """216 convolutions forward and backward: most to the byte where cuDNN can be asked."""
    rows = {name: row for name, row in recorded["workspaces"].items() if CONVOLUTION.match(name)}
    with virtual.activated("H100 80GB", release="2.11.0"):
        warm_up_libraries()
        found = {name: convolved(name) for name in rows}
    same = [
        moment
        for name in rows
        for moment, sizes in found[name].items()
        if sizes == rows[name][moment]
    ]
    assert len(rows) == 216
    assert len(same) >= equal


def test_the_virtual_cards_free_bytes_are_the_cards(recorded):
    """Up to 8 processes; of one of 30 GiB the driver takes 2 MiB more, which are not modelled."""
    for row in recorded["contexts"]:
        if row["processes"] not in range(1, 9):
            continue
        others = dict.fromkeys(range(1, row["processes"]), 0)
        with virtual.activated("H100 80GB", other_processes=others) as gpu:
            torch.zeros(1, device="cuda")
            free, more = torch.cuda.mem_get_info()[0], row["listed"] - gpu.process_bytes
            assert free - more == row["free"], row["label"]
            assert gpu.nvml_used + more == row["used"] + row["reserved"], row["label"]
