"""Ranks started by mp.spawn, accelerate, Ray and ipyparallel."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="ranks train with torch")

import nbmem
from nbmem.core.session.categories import Category
from nbmem.frontends.notebook.engines import engines_folder

TRAIN = """\
import os, torch, torch.distributed as dist
import nbmem

def train(rank=None, world=None):
    if rank is not None:
        dist.init_process_group(
            "gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=world
        )
    elif not dist.is_initialized():
        dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
    for _ in range(2):
        model(torch.randn(8, 256, device="cuda")).sum().backward()
    return 7
"""
SPAWN = """
import torch.multiprocessing as mp

if __name__ == "__main__":
    mp.spawn(nbmem.recorded(train, "today/", gpu="T4"), args=(2,), nprocs=2)
"""
LAUNCHER = """
from accelerate import notebook_launcher

notebook_launcher(nbmem.recorded(train, "today/", gpu="T4"), (), num_processes=2)
"""
RAY = """
import ray
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def train_func():
    train()

ray.init(num_cpus=2, include_dashboard=False)
scaling = ScalingConfig(num_workers=2, use_gpu=False)
TorchTrainer(nbmem.recorded(train_func, "today/", gpu="T4"), scaling_config=scaling).fit()
"""
PARAMETERS = 4 * (256 * 256 + 256)


@pytest.mark.parametrize(
    ("package", "program"),
    # Accelerate is of other groups, too: it is tried where the group `integrations` is.
    [("torch", SPAWN), ("ray", LAUNCHER), ("ray.train", RAY)],
    ids=["spawn", "accelerate", "ray"],
)
def test_each_process_is_a_rank_of_one_report(tmp_path, package, program):
    pytest.importorskip(package, reason=f"{package} is not installed", exc_type=ImportError)
    (tmp_path / "train.py").write_text(TRAIN + program)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "nbmem:" not in done.stderr
    expect_two_alike(nbmem.open(tmp_path / "today"))


def expect_two_alike(world):
    report = world.report
    assert (report.size, report.missing, report.imbalances) == (2, (), ())
    assert [row.state for row in report.rows] == ["finished"] * 2
    for row in report.rows:
        assert row.held[Category.WEIGHTS] == PARAMETERS
        assert row.held[Category.COMMUNICATION] == PARAMETERS


CELLS = (
    """\
import ipyparallel as ipp
cluster = ipp.Cluster(n=2, log_level=40)
engines = cluster.start_and_connect_sync()
engines.activate()
engines[:].scatter("rank", [0, 1], flatten=True).get()
%load_ext nbmem""",
    """\
%%px
%load_ext nbmem
from train import train""",
    """\
%%px
%%memtrace --gpu T4 --save today/
import os, time
train(rank, 2)
while not os.path.exists("seen"):
    time.sleep(0.05)""",
    """\
%%px
%%memtrace --save broken/
1 / 0""",
    "cluster.stop_cluster_sync()",
)


def test_a_cell_on_engines_has_one_report_in_the_notebook_that_asked(tmp_path):
    pytest.importorskip("ipyparallel", reason="ipyparallel is not installed")
    nbformat = pytest.importorskip("nbformat", reason="notebooks are executed")
    nbclient = pytest.importorskip("nbclient", reason="notebooks are executed")
    (tmp_path / "train.py").write_text(TRAIN)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    notebook.cells[3].metadata["tags"] = ["raises-exception"]
    told = []

    class Page(nbclient.NotebookClient):
        """Hears what a page would; the engines wait until it has heard of both."""

        def process_message(self, msg, cell, cell_index):
            data = msg["content"].get("data", {}) if msg["msg_type"] == "comm_msg" else {}
            if data.get("kind") == "ranks_now":
                told.append(data)
                if len(data["ranks"]) == 2 and data["folder"] == "today":
                    (tmp_path / "seen").touch()
            return super().process_message(msg, cell, cell_index)

    Page(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    traced = [data for data in told if data["folder"] == "today"]  # then ranks of the other come
    assert {rank["number"] for rank in traced[-1]["ranks"]} == {0, 1}
    reports = [
        output["data"]["text/plain"]
        for output in notebook.cells[2].outputs
        if "peaks highest" in output.get("data", {}).get("text/plain", "")
    ]
    world = nbmem.open(tmp_path / "today")
    assert reports == [str(world)]
    expect_two_alike(world)


@pytest.mark.parametrize(
    ("cell", "folder"),
    [
        ("%%px\n%%memtrace --save today/\nx = 1", "today/"),
        ("%%px --block\n%%memtrace train --save=today/\nx = 1", "today/"),
        ("%%px\n%%memtrace --save today.nbmem\nx = 1", None),
        ("%%px\nx = 1", None),
        ("%%memtrace --save today/\nx = 1", None),
        ("x = 1", None),
    ],
)
def test_which_cells_are_of_engines(cell, folder):
    assert engines_folder(cell) == folder
