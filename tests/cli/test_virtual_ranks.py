"""`nbmem run --ranks`: each rank that can differ, in its own process."""

import json

import pytest

pytest.importorskip("torch", reason="the ranks run on virtual cards")

from nbmem.frontends.cli import main
from nbmem.frontends.cli.virtual_ranks import _stand_ins
from nbmem.virtual.virtual_worlds import layout

PIPELINE = """
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
stage = PipelineStage(
    torch.nn.Linear(256, 256, bias=False).cuda(), rank, 2, torch.device("cuda", rank)
)
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, _: out.sum())
if rank == 0:
    schedule.step(torch.randn(4, 256, device="cuda"))
else:
    schedule.step(target=torch.zeros(4, 256, device="cuda"))
"""


def test_stages_of_a_pipeline_agree_on_shapes_and_are_reported_together(tmp_path, capfd):
    script = tmp_path / "train.py"
    script.write_text(PIPELINE)
    told = tmp_path / "world.json"
    arguments = ["run", str(script), "--gpu", "H100", "--ranks", "2", "--save", f"{tmp_path}/runs/"]
    assert main([*arguments, "--json", str(told)]) == 0
    report = json.loads(told.read_text())
    assert [(row["rank"], row["stands_for"]) for row in report["ranks"]] == [(0, []), (1, [])]
    assert "2 ranks" in capfd.readouterr().out


def test_a_rank_stands_for_those_that_do_the_same():
    assert _stand_ins(4, [0, 3], [0]) == {0: [1, 2]}
    # Two stages of four ranks each, and pairs of stages side by side.
    assert _stand_ins(8, [0, 4, 3, 7], [0, 4]) == {0: [1, 2], 4: [5, 6]}
    assert _stand_ins(4, [0, 1, 3], [0, 1]) == {0: [2]}


def test_a_world_is_shared_out_over_machines():
    assert layout("H100", 64, None) == (64, 8, "8xH100")
    assert layout("4xT4", 8, None) == (8, 4, "4xT4")
    assert layout("auto", 4, None) == (4, 4, "4xH100 80GB")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ranks", "9"], "9 ranks cannot be shared out evenly over 2 machines"),
        (["--ranks", "4", "--gpu", "3xT4"], "4 ranks do not fill machines of 3 cards"),
        (["--ranks", "4", "--rank", "4"], "Rank 4 is not in a world of 4: ranks count from 0 to 3"),
        (["--ranks", "4", "--rank", "a"], "name ranks by their numbers"),
        (["--ranks", "0"], "a world has one rank at least"),
        (["--ranks", "2", "--save", "one.nbmem"], "Name a folder, with a slash at its end"),
        (["--rank", "1"], "give --ranks N, too"),
    ],
)
def test_a_world_that_cannot_be_gets_a_sentence(tmp_path, capsys, options, sentence):
    script = tmp_path / "train.py"
    script.write_text("")
    assert main(["run", str(script), *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_program_of_one_process_is_told_from_one_of_many(tmp_path, capfd):
    script = tmp_path / "train.py"
    script.write_text("import torch; kept = torch.ones(1 << 20, device='cuda')")
    assert main(["run", str(script), "--ranks", "2", "--rank", "0"]) == 0
    assert "train.py never called init_process_group" in capfd.readouterr().err
