"""Fixtures that start several real processes as torchrun does."""

import os
import subprocess
import sys

import pytest

TRAIN = """\
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = "file://" + os.path.abspath("store")
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 16))
model = nn.parallel.DistributedDataParallel(model.cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    batch = torch.randn(1024 * (1 + 79 * rank), 1024, device="cuda")
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if "oom" in sys.argv and rank == 1:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
if "wait" in sys.argv and rank == 0:
    dist.barrier()
if "wait" in sys.argv and rank == 1:
    sys.stdin.read()
print("trained", rank)
dist.destroy_process_group()
"""
RUN = ["-m", "nbmem", "run", "train.py", "--gpu", "2xT4", "--save", "runs/today/"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Start the program in two processes; return folder and processes.

    By torchrun it is one process to wait for; without it the two themselves, which saves an import.
    """

    def begin(*words, agent=False):
        folder = tmp_path_factory.mktemp("world")
        (folder / "train.py").write_text(TRAIN)
        commands = [TORCHRUN] if agent else [[], []]
        return folder / "runs" / "today", [
            subprocess.Popen(
                [sys.executable, *command, *RUN, "--", *words],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **_ranked(rank)},
            )
            for rank, command in enumerate(commands)
        ]

    return begin


def _ranked(rank):
    """Return the variables that torchrun would set."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
