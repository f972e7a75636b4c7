"""Rank 0 of a world as an estimate: shards and impossible worlds."""

import dataclasses

import pytest
import torch

if not torch.distributed.is_available() or torch.__version__ < "2.11":
    pytest.skip("the card runs the newest FSDP alone", allow_module_level=True)

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.core.session.categories import Category
from nbmem.estimates.programs import programs
from nbmem.estimates.questions import world_sizes
from nbmem.estimates.runs.probe_run import Request, probe, record
from nbmem.estimates.world_choice import NO_GROUP, of_world, rank_sentences, world_for
from nbmem.frontends.cli import main
from nbmem.report.ledger.card_ledger import CardLedger

WIDTH, LAYERS = 512, 3
WHOLE = LAYERS * WIDTH * WIDTH * 4
TRAIN = f"""
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

batch = 8
dist.init_process_group("nccl")
assert dist.get_world_size() == int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
cards = torch.cuda.device_count()
model = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(batch, {WIDTH}, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ALONE = "import torch\nx = torch.ones(1024, device='cuda')\n"


def rank_of(source, ranks, gpu="H100"):
    card, world = world_for(gpu, ranks)
    return of_world(programs.cell(source, {}), world), Request(card=card)


@pytest.mark.parametrize(("gpu", "ranks"), [("H100", 64), ("4xA100", 8)])
def test_a_rank_has_its_shards(gpu, ranks):
    program, request = rank_of(TRAIN, ranks, gpu)
    assert program.title == f"cell, rank 0 of {ranks}"
    session = record(program, request)
    card_ledger = CardLedger(session)
    held = card_ledger.ledger(card_ledger.events)
    assert held[Category.WEIGHTS] == WHOLE // ranks
    assert held[Category.OPTIMIZER_STATE] == 2 * WHOLE // ranks
    assert (session.rank.number, session.rank.world) == (0, ranks)


def test_two_runs_in_one_process_both_make_their_group():
    program, request = rank_of(TRAIN, 8)
    first, second = probe(program, request).probe, probe(program, request).probe
    assert first.fits
    assert (first.allocated, first.notes) == (second.allocated, second.notes)
    assert not torch.distributed.is_initialized()


@pytest.mark.long
def test_two_runs_in_one_process_both_are_accelerates_first():
    pytest.importorskip("accelerate")
    source = """
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(512, 512, bias=False)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
accelerator.backward(model(torch.ones(8, 512, device=accelerator.device)).sum())
optimizer.step()
"""
    for _ in range(2):
        found = probe(*rank_of(source, 8)).probe
        assert found.failure is None
        assert found.sent["all-reduce"] == 512 * 512 * 4


def test_a_program_without_a_process_group_is_noted_to_hold_everything():
    program, request = rank_of(ALONE, 8)
    found = probe(program, request).probe
    assert rank_sentences(program, found)[1:] == [NO_GROUP]


def test_a_search_is_of_a_rank(here):
    program = programs.cell(TRAIN, {}, vary="batch")
    eight = here.fit(program, "T4", ranks=8, between=(8, 8))
    assert "It is of rank 0 of 8, each with a card of its own" in " ".join(str(eight).split())
    assert eight.probes[0].held["weights"] == WHOLE // 8


def test_the_fewest_cards_and_what_they_communicate(here, monkeypatch):
    monkeypatch.setattr(world_sizes, "EstimateProcess", here.EstimateProcess)
    card, source, held = virtual.find_card("T4"), TRAIN.replace(f"{WIDTH}", "4096"), 64 * WHOLE
    two, shared = (probe(*rank_of(source, ranks, card)).probe for ranks in (2, 8))
    least = two.allocated + two.process - two.reserved
    assert shared.wanted < least
    room = (least + shared.wanted) // 2
    small = dataclasses.replace(card, total_bytes=room, nvml_total=room)
    answer = here.worlds(programs.cell(source, {}), small, (8, 2), margin=0.0)
    assert [ranks for ranks, _ in answer.runs] == [2, 8]
    assert answer.fewest == 8
    assert answer.sentences[0].startswith("The fewest of these cards that train it: 8 (")
    for _, run in answer.runs:
        assert run.sent == {"all-gather": 2 * held, "reduce-scatter": held}
    told = answer.to_json()
    assert (told["fewest"], told["runs"][1]["sent"]["reduce-scatter"]) == (8, held)
    rows = [row.split()[:2] for row in str(answer).splitlines() if " GiB " in row]
    assert [row for row in rows if row[0] in {"2", "8"}] == [
        [count, way] for count in ("2", "8") for way in ("as", "reshard")
    ]
    assert "each step" in answer.to_html()


def test_several_worlds_and_remedies_are_two_questions(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    for more, sentence in (
        (["--ranks", "2,4", "--all"], "ask for one number of ranks, or leave them out."),
        (["--ranks", "a,b"], "--ranks a,b: say how many, as in 64, or 8,16,32."),
    ):
        assert main(["plan", str(script), *more]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())


def test_worlds_that_cannot_be():
    with pytest.raises(UsageError, match="12 ranks do not fill machines of 8 cards"):
        world_for("8xH100", 12)
    with pytest.raises(UsageError, match="cards of one kind"):
        world_for("H100, T4", 2)
    with pytest.raises(UsageError, match="a world has one rank at least"):
        world_for("H100", 0)
    with pytest.raises(UsageError, match="say how many ranks: --ranks 8"):
        world_for("8xH100", None)
