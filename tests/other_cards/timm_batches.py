"""timm's benchmarks: the batch with which each model ran on their card, and the next that did not.

Their script begins with a large batch and tries the next smaller one until a run does not run out
of memory. So a published batch below the first says two things of a card: this batch runs, and the
one tried before does not. `timm_batches.csv` has every so-manieth of these rows.
https://github.com/huggingface/pytorch-image-models/tree/aa4b5850c1543fa488abf260f18390eda46cf85d/results
"""

from __future__ import annotations

import csv
import gc
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nbmem import virtual

TABLE = Path(__file__).with_suffix(".csv")
SOURCE = "[timm](https://github.com/huggingface/pytorch-image-models/tree/aa4b5850c1543fa488abf260f18390eda46cf85d/results)"
HEAD = (
    "| card | run | models | this batch runs | the next runs out | both |",
    "|---|---|--:|--:|--:|--:|",
)
STEPS = 3
"""Steps of a run: the first makes the optimizer's state, the others are alike."""


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A batch that ran on a card.

    Attributes:
        model: timm's name.
        card: The card.
        train: Whether it trained, or inferred alone.
        channels_last: Whether images and weights were in channels last.
        batch: The batch that ran.
        size: Pixels of an image's side.
        parameters: Millions of parameters, with two decimals.
        torch: The release of torch, as in the table's name.
    """

    model: str
    card: str
    train: bool
    channels_last: bool
    batch: int
    size: int
    parameters: float
    torch: str

    @property
    def is_old(self) -> bool:
        """Whether torch was of the time before fused attention and foreach optimizers."""
        return self.torch.startswith("1.")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the virtual card says of a batch and of the next larger one.

    Attributes:
        row: The batch.
        runs: Whether it runs.
        next_runs: Whether the next larger one runs.
        error: Why the model could not be run; "" if it was.
    """

    row: Survivor
    runs: bool = False
    next_runs: bool = False
    error: str = ""


def survivors() -> list[Survivor]:
    """Read the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            Survivor(
                model=row["model"],
                card=row["card"],
                train=row["run"] == "train",
                channels_last=row["layout"] == "nhwc",
                batch=int(row["batch"]),
                size=int(row["size"]),
                parameters=float(row["parameters"]),
                torch=row["torch"],
            )
            for row in csv.DictReader(file)
        ]


def next_larger(batch: int) -> int:
    """Return the batch that their script tries before this one.

    It goes down by the powers of two, with one step between two of them.
    """
    power = 1 << (batch.bit_length() - 1)
    return power * 2 if batch > power else max(power * 3 // 2, power + 1)


def run(row: Survivor) -> Verdict:
    """Run a batch and the next one on the virtual card. It becomes this process's only one."""
    warnings.simplefilter("ignore")
    virtual.activate(row.card, conf="", defer=True)
    try:
        return Verdict(
            row=row, runs=_runs(row, row.batch), next_runs=_runs(row, next_larger(row.batch))
        )
    except Exception as err:  # noqa: BLE001 - one model that cannot run is a row of the table
        return Verdict(row=row, error=f"{type(err).__name__}: {err}".splitlines()[0])
    finally:
        virtual.deactivate()


def _runs(row: Survivor, batch: int) -> bool:
    try:
        _train(row, batch) if row.train else _infer(row, batch)
    except torch.OutOfMemoryError:
        return False
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return True


def _model(row: Survivor) -> Any:
    import timm

    timm.layers.set_fused_attn(not row.is_old)
    model = timm.create_model(row.model, pretrained=False)
    count = sum(one.numel() for one in model.parameters())
    if not math.isclose(count / 1e6, row.parameters, abs_tol=0.006):
        message = f"{count:,d} parameters, theirs {row.parameters} million"
        raise ValueError(message)
    return model.to(device="cuda", memory_format=_format(row))


def _format(row: Survivor) -> torch.memory_format:
    return torch.channels_last if row.channels_last else torch.preserve_format


def _images(row: Survivor, batch: int) -> torch.Tensor:
    made = torch.randn(batch, 3, row.size, row.size, device="cuda")
    return made.contiguous(memory_format=torch.channels_last) if row.channels_last else made


def _infer(row: Survivor, batch: int) -> None:
    model = _model(row).eval()
    with torch.inference_mode():
        images = _images(row, batch)
        for _ in range(STEPS):
            with torch.autocast("cuda", torch.float16):
                output = model(images)
    del output


def _train(row: Survivor, batch: int) -> None:
    model = _model(row).train()
    options = {"foreach": False} if row.is_old else {}
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9, nesterov=True, **options)
    images = _images(row, batch)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=not row.is_old)
        with torch.autocast("cuda", torch.float16):
            output = model(images)
            output = output[0] if isinstance(output, tuple) else output
            target = torch.empty(batch, dtype=torch.long, device="cuda").random_(1000)
            torch.nn.functional.cross_entropy(output, target).backward()
        optimizer.step()


def table(verdicts: Iterable[Verdict]) -> list[str]:
    """Format one line for each card and kind of run."""
    groups: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for one in verdicts:
        if not one.error:
            kind = "training" if one.row.train else "inference"
            groups[one.row.card, f"{kind}, torch {one.row.torch}"].append(one)
    return [*HEAD, *(_line(card, kind, found) for (card, kind), found in groups.items())]


def _line(card: str, kind: str, found: list[Verdict]) -> str:
    runs = sum(one.runs for one in found)
    out = sum(not one.next_runs for one in found)
    both = sum(one.runs and not one.next_runs for one in found)
    return f"| {card} | {kind} | {len(found)} | {runs} | {out} | {both} |"
