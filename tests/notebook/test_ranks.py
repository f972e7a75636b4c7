"""A notebook as one rank of many, and its return to one process."""

import os

import pytest
import torch

if not torch.distributed.is_available() or torch.__version__ < "2.11":
    pytest.skip("the card runs the newest FSDP alone", allow_module_level=True)

from nbmem import virtual
from tests.ipython_shell import shell_on_virtual_card

pytestmark = pytest.mark.torch
TRAIN = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = fully_shard(torch.nn.Linear(640, 64, bias=False))
model(torch.randn(8, 640, device="cuda")).sum().backward()
"""


@pytest.fixture
def shell(monkeypatch):
    with shell_on_virtual_card(monkeypatch) as shell:
        shell.run_cell("import os, torch", store_history=True)
        yield shell


def output_of(shell, capsys, line):
    capsys.readouterr()
    assert shell.run_cell(line, store_history=True).success
    return " ".join(capsys.readouterr().out.split())


def test_a_notebook_is_one_rank_of_many_until_it_leaves(shell, capsys, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "4711")
    text = output_of(shell, capsys, "%nbmem gpu H100 --ranks 64 --rank 37")
    assert text.startswith("This notebook is rank 37 of 64, on 8 virtual NVIDIA H100 80GB HBM3")
    assert "Its card is cuda:5 (LOCAL_RANK)" in text
    report = output_of(shell, capsys, f"%%memtrace --no-widget\n{TRAIN}")
    assert "rank 37 of 64, on NVIDIA H100 80GB HBM3 (cuda:5, virtual)" in report
    assert shell.user_ns["dist"].get_rank() == 37
    shard = shell.user_ns["model"].weight.to_local()
    assert shard.untyped_storage().nbytes() == 640 * 4
    output_of(shell, capsys, "del model")
    assert output_of(shell, capsys, "%nbmem gpu off").startswith("The virtual cards are out")
    assert "RANK" not in os.environ
    assert os.environ["MASTER_PORT"] == "4711"
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("T4 --rank 3", "--rank says which of --ranks: %nbmem gpu H100 --ranks 64 --rank 37."),
        ("8xT4 --ranks 12", "12 ranks do not fill machines of 8 cards (8xT4)"),
        ("T4 --ranks 8 --rank 8", "Rank 8 is not in a world of 8: ranks count from 0 to 7."),
    ],
)
def test_what_is_no_rank_changes_nothing(shell, capsys, line, sentence):
    before = virtual.gpus()
    shell.run_cell(f"%nbmem gpu {line}", store_history=True)
    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err
    assert virtual.gpus() == before
    assert "RANK" not in os.environ
