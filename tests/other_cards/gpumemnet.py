"""GPUMemNet's training jobs, run on the virtual card that its authors had.

Each row of the table is a job that ran for a minute on an A100-SXM4 with 40 GB: its arguments, the
peak of nvidia-smi's memory.used in steps of 2 MiB, and whether it ran out of memory.
https://github.com/itu-rad/GPUMemNet, https://arxiv.org/abs/2602.17817
"""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nbmem import virtual
from tests.other_cards.gpumemnet_models import arguments_of, build

TABLE = Path(__file__).with_name("gpumemnet_a100_40gb.csv")
CARD = "A100 40GB"
SAMPLES = 4096
"""Size of their data, which decides how large the last batch is."""
FULL_BATCHES = 4
"""Batches of a run here, before the last and smaller one; then it begins anew."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that ran on the real card.

    Attributes:
        kind: `mlp1`, `mlp2` or `cnn`.
        name: Its log's name, which holds its arguments.
        used: Peak of nvidia-smi's memory.used, in bytes.
        ran_out: Whether it ended in an out-of-memory error.
        parameters: Parameters that its log counts; None if it does not say.
    """

    kind: str
    name: str
    used: int
    ran_out: bool
    parameters: int | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the virtual card says of a job.

    Attributes:
        reserved: Peak of the reserved bytes.
        ran_out: Whether it ended in an out-of-memory error.
        error: Why the job could not run; "" if it did.
    """

    reserved: int
    ran_out: bool
    error: str = ""


def jobs() -> list[Job]:
    """Read the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Job(
                kind=row["kind"],
                name=row["filename"],
                used=int(row["used"]) << 20,
                ran_out=row["status"] == "OOM_CRASH",
                parameters=int(row["extra"]) if row["extra"] else None,
            )
            for row in csv.DictReader(file)
        ]


def run(job: Job) -> Outcome:
    """Run a job on the virtual card. It becomes this process's only one."""
    warnings.simplefilter("ignore")
    virtual.activate(CARD, conf="", defer=True)
    try:
        ran_out = _ran_out(job)
        return Outcome(reserved=torch.cuda.max_memory_reserved(), ran_out=ran_out)
    except Exception as err:  # noqa: BLE001 - one job that cannot run is a row of the table
        return Outcome(reserved=0, ran_out=False, error=f"{type(err).__name__}: {err}")
    finally:
        virtual.deactivate()


def _ran_out(job: Job) -> bool:
    a = arguments_of(job.name)
    try:
        _train(job, a)
    except torch.OutOfMemoryError:
        return True
    except ValueError as err:  # a batch norm of one value: their run ended there as well
        if "more than 1 value per channel" not in str(err):
            raise
    return False


def _train(job: Job, a: dict[str, Any]) -> None:
    side = a.get("input_size")
    shape = (a["input_channels"], side, side) if job.kind == "cnn" else (a["input"],)
    model = build(job.kind, a, job.parameters).to_empty(device="cuda")
    model(torch.rand(2, *(shape if job.kind == "cnn" else (1, *shape))).cuda())  # torchsummary's
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for rows in _batches(a["batch"]):
        x = torch.empty(rows, *shape)
        y = torch.zeros(rows, dtype=torch.long)
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        loss.item()


def _batches(size: int) -> list[int]:
    """Return the sizes of an epoch's first batches and its last one, and of a second epoch's."""
    full, last = divmod(SAMPLES, size)
    epoch = [size] * min(full, FULL_BATCHES) + ([last] if last else [])
    return [*epoch, *epoch, *[size] * min(full, 2)]
