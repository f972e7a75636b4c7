"""On which cards of the table a program runs: `plan --gpu all`."""

import json

import pytest

torch = pytest.importorskip("torch")

import nbmem
from nbmem.core.errors import UsageError
from nbmem.core.units import GIB
from nbmem.estimates.questions import card_table
from nbmem.frontends.cli import main
from nbmem.virtual.card_names import find_card

CARDS = ("T4", "L4", "A100 40GB", "H100 80GB")


@pytest.fixture
def few(here, monkeypatch):
    """Ask about four cards, in this process."""
    monkeypatch.setattr(card_table, "CARDS", tuple(map(find_card, CARDS)))
    return here


def takes(gib):
    def program():
        import torch

        return torch.zeros(gib << 30, dtype=torch.uint8, device="cuda")

    return program


def test_a_card_suffices_from_its_size_on(few):
    lines = []
    answer = few.plan(takes(20), "all", tell=lines.append)
    assert [one.card for one in answer.cards] == list(CARDS)
    assert [one.fits for one in answer.cards] == [False, True, True, True]
    assert answer.allocated == 20 * GIB
    assert len(lines) == 1  # one run decides them all
    output = str(answer)
    assert "fits 3 of the 4 cards that nbmem knows. The smallest is L4, with 22.49 GiB." in output
    rows = [line.split("  ")[0] for line in output.splitlines()[-4:]]
    assert rows == ["L4", "A100 40GB", "H100 80GB", "T4"]  # what fits, the smallest first


def test_a_program_that_fits_nowhere_says_so(few):
    answer = few.plan(takes(100), "all")
    assert "fits none of the 4 cards" in str(answer)
    assert answer.to_json()["cards"][0]["fits"] is False


def test_a_card_without_bfloat16_kernels_gets_a_run(few):
    def program():
        import torch

        layer = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)
        return layer(torch.zeros(8, 1024, device="cuda", dtype=torch.bfloat16))

    lines = []
    answer = few.plan(program, "all", tell=lines.append)
    assert [line.partition(":")[0] for line in lines] == ["H100 80GB", "T4"]
    assert all(one.fits for one in answer.cards)


def test_other_options_are_of_one_card(few):
    with pytest.raises(UsageError, match="runs as it is"):
        few.plan(takes(1), "all", target=GIB)


def test_the_command_line_asks_for_all_cards(few, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import torch\nx = torch.zeros(1 << 20, device='cuda')\n")
    file = tmp_path / "cards.json"
    assert main(["plan", str(script), "--gpu", "all", "--json", str(file)]) == 0
    assert "train.py fits 4 of the 4 cards" in capsys.readouterr().out
    assert [one["card"] for one in json.loads(file.read_text())["cards"]] == list(CARDS)


def test_a_program_that_fails_is_refused(few):
    def program():
        raise ValueError("no data")

    with pytest.raises(UsageError, match="no data"):
        few.plan(program, "all")
    assert nbmem.plan is few.plan
