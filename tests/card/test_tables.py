"""Rows of cards.toml from a card's files, and differences to the byte."""

import tomllib

import pytest

from nbmem.core.units import MIB
from nbmem.virtual import find_card
from nbmem.virtual.cards import _card
from tests.card.results import read_results
from tests.card.run_part import fill
from tests.card.tables import (
    TABLE,
    Difference,
    UnusableError,
    card_row,
    count_reached_cases,
    differences,
    insert_row,
    main,
    merge_shares,
    toml,
)

ABOUT = {
    "card": "Tesla T4",
    "driver": "580.159.04",
    "torch": "2.13.0+cu130",
    "cuda": "13.0",
    "processors": 40,
    "capability": [7, 5],
    "l2": 4 * MIB,
    "real": True,
}
CARD = {"total": 14_912 * MIB + 5, "nvml_total": 15_360 * MIB, "driver": 447 * MIB, "used": 450}
LIBRARIES = {
    "context": 103 * MIB,
    "a kernel": 0,
    "cublas": 27 * MIB,
    "cudnn": 5 * MIB,
    "nccl": "RuntimeError: no such backend",
    "by": "process",
}


def file(path, cases, about=ABOUT):
    fill(path, about, [(name, lambda it=it: it) for name, it in cases.items()], 1e12)
    return read_results(path)


@pytest.fixture
def measured(tmp_path):
    """Write the files of a T4 as tests/card writes them."""
    return file(tmp_path / "context.jsonl", {"card": CARD, "libraries": LIBRARIES})


def test_the_row_has_what_was_measured_and_is_read_as_such(measured):
    row = tomllib.loads(toml(card_row(measured)))["card"][0]
    assert row == {
        "key": "T4",
        "name": "Tesla T4",
        "aliases": list(find_card("T4").aliases),
        "total": 14_912,
        "nvml_total": 15_360,
        "processors": 40,
        "capability": [7, 5],
        "l2": 4,
        "context": 103,
        "cublas": 27,
        "cudnn": 5,
        "source": "measured by tests/card, driver 580.159.04, torch 2.13.0+cu130",
    }
    card = _card(row)
    assert card.context_band == (103 * MIB, 103 * MIB)
    assert (card.cublas_bytes, card.cudnn_bytes) == (27 * MIB, 5 * MIB)
    assert card.nccl_bytes == find_card("T4").nccl_bytes
    low, high = find_card("T4").context_band
    assert low < high


def test_the_row_takes_the_place_of_the_cards_own_and_no_other(measured):
    before = TABLE.read_text("utf-8")
    after = insert_row(before, card_row(measured))
    old, new = tomllib.loads(before), tomllib.loads(after)
    assert len(new["card"]) == len(old["card"])
    changed = [one for one in new["card"] if one not in old["card"]]
    assert [one["total"] for one in changed] == [14_912]
    assert new["published"] == old["published"]
    assert insert_row(after, card_row(measured)) == after


def test_an_unknown_card_is_added_behind_the_others(measured):
    measured.head["card"] = "NVIDIA B9000"
    new = tomllib.loads(insert_row(TABLE.read_text("utf-8"), card_row(measured)))
    assert new["card"][-1]["key"] == "B9000"
    assert new["published"]


def test_what_is_no_real_cards_is_refused(tmp_path, measured, monkeypatch):
    file(tmp_path / "oracle/context.jsonl", {"card": CARD}, {**ABOUT, "real": False})
    with pytest.raises(UnusableError, match="no real card"):
        card_row(read_results(tmp_path / "oracle/context.jsonl"))
    with pytest.raises(UnusableError, match="totals"):
        card_row(file(tmp_path / "torn.jsonl", {}))
    monkeypatch.setattr("sys.argv", ["tables", "--write", str(tmp_path / "oracle")])
    with pytest.raises(SystemExit, match="no real card"):
        main()


def test_differences_are_named_with_their_bytes(tmp_path):
    card = {
        "conv": {"first": [512, 4096, -4096], "first backward": [1024, 1024, 2048]},
        "mm": {"first": [512]},
        "refused": "RuntimeError: no",
        "alone": {"first": [512]},
    }
    virtual = {
        "conv": {"first": [512, 8192, -8192], "first backward": [1024, 2048]},
        "mm": {"first": [512]},
        "refused": {"first": [1]},
    }
    found = differences(file(tmp_path / "a", card), file(tmp_path / "b", virtual))
    assert found == (
        3,
        [
            Difference("conv, first", {4096: 1}, {8192: 1}),
            Difference("conv, first backward", {1024: 1}, {}),
        ],
    )
    assert str(found[1][0]) == "conv, first: card 4,096; virtual 8,192"
    order = differences(
        file(tmp_path / "c", {"x": {"first": [1, 2]}}),
        file(tmp_path / "d", {"x": {"first": [2, 1]}}),
    )
    assert str(order[1][0]) == "x, first: the same sizes in another order"


def test_compiled_steps_are_compared_by_their_peaks_pools_and_last_step(tmp_path):
    pytest.importorskip("torch", reason="the workloads are torch programs")
    from tests.card.compiled import moments

    found = {"peaks": [[5, 8], [6, 8]], "sizes": [4, -4], "pools": [2], "notes": []}
    other = {**found, "peaks": [[5, 8], [7, 8]], "sizes": [4, 1, -1, -4]}
    assert moments({"error": "RuntimeError: no"}) == "RuntimeError: no"
    real, here = (
        file(tmp_path / name, {"mlp": moments(one)}) for name, one in (("a", found), ("b", other))
    )
    compared, differing = differences(real, here)
    assert compared == 4
    assert differing == [
        Difference("mlp, last step", {}, {1: 1}),
        Difference("mlp, peak allocated", {6: 1}, {7: 1}),
    ]


def test_the_files_of_processes_beside_each_other_are_one(tmp_path):
    shares = [file(tmp_path / "a", {"1": 1, "3": 3}), file(tmp_path / "b", {"2": 2})]
    found = merge_shares(shares)
    assert (found.head, found.cases) == (ABOUT, {"1": 1, "2": 2, "3": 3})
    assert found.complete
    assert count_reached_cases(shares) == 4
    assert count_reached_cases([]) == 0


def test_the_virtual_card_measures_itself_as_its_own_row(tmp_path):
    """The parts that a card runs, on the card that is there everywhere."""
    torch = pytest.importorskip("torch", reason="the parts are torch programs")
    from nbmem import virtual
    from tests.card import context, workspaces

    with virtual.activated("T4"):
        totals = context.card()
        libraries = context.libraries()
        _, convolve = next(workspaces.cases())
        asked = convolve()
        assert not torch.distributed.is_initialized()
    t4 = find_card("T4")
    assert totals["total"] == t4.total_bytes
    assert totals["nvml_total"] == t4.nvml_total
    assert (libraries["context"], libraries["cublas"], libraries["cudnn"]) == (
        t4.context_bytes,
        t4.cublas_bytes,
        t4.cudnn_bytes,
    )
    output = 8 * 64 * 112 * 112 * 4
    assert asked["first"][0] == asked["later"][0] == output
