"""Try a pipeline of diffusers whose idle models wait on the host.

Its models run one after the other. diffusers moves each to the card when it is called, and the one
before it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.units import format_bytes
from nbmem.report.analysis.oom.program_changes.image_decoder import decoded_without
from nbmem.report.analysis.oom.trial import Outcome
from nbmem.report.analysis.pipelines import Pipeline, pipelines_of, rows_by_model
from nbmem.report.model import Finding
from nbmem.report.savings import estimated, exact

if TYPE_CHECKING:
    from nbmem.report.analysis.oom.failed_request import FailedRequest
    from nbmem.report.analysis.oom.trial import Trial

    Attempts = Iterator[tuple[Finding, Outcome | None]]

_FOLDER = ("diffusers", "pipelines")
_FILE, _MOVE = "pipeline_utils.py", "to"
_ROUNDED = 1.02
"""Reserved bytes for each byte of weights: the allocator rounds segments to 2 MiB."""
_BESIDE = 0.9
"""Part of the card that weights may take, as what they compute comes on top."""


def idle_models(trial: Trial) -> Attempts:
    """Yield a pipeline in 16 bits, or with one model on the card at a time."""
    case = trial.case
    pipeline = _running(case)
    if pipeline is None or pipeline.offloaded:
        return
    if _is_moved(case):
        yield from _loaded(case, pipeline)
        return
    seen = case.refusal
    running = None if seen is None else pipeline.running(seen.layer)
    rows = rows_by_model(case.card_ledger, pipeline, case.index)
    if running is None:
        return
    idle = np.concatenate([own for name, own in rows.items() if name != running])
    size = trial.bytes_of(idle)
    if size:
        outcome = decoded_without(trial, idle) or trial.now(freed=idle.tolist())
        yield _offloaded(pipeline, size, f"{running} was running"), outcome


def _loaded(case: FailedRequest, pipeline: Pipeline) -> Attempts:
    """Yield what the card holds of a pipeline that is moved to it."""
    ways = rows_by_model(case.card_ledger, pipeline, case.index).values()
    there = int(case.card_ledger.allocations.block[np.concatenate(list(ways))].sum())
    room = _BESIDE * case.capacity - (int(case.card_ledger.allocated[case.index]) - there)
    loads = Outcome("on", loads=True)
    size, name = pipeline.size, pipeline.name
    if pipeline.is_float32 and _ROUNDED * size / 2 <= room:
        yield (
            Finding(
                rule="weights_dtype",
                title=f"Load {name} in float16: {format_bytes(size // 2)} in place of "
                f"{format_bytes(size)}",
                evidence="Its float32 weights were being moved to the card.",
                **exact(size - size // 2),
                code=f'import torch\n\n{name}.to(torch.float16).to("cuda")',
            ),
            loads,
        )
    if _ROUNDED * pipeline.largest <= room:
        saved = size - pipeline.largest
        yield _offloaded(pipeline, saved, f"All {format_bytes(size)} were being moved"), loads
        return
    yield (
        Finding(
            rule="idle_models",
            title=f"Let {name} move one layer at a time, "
            f"`{name}.enable_sequential_cpu_offload()` in place of `.to(...)`",
            evidence=f"Its models have {pipeline.listed()}: the largest alone is too much. Each "
            "layer travels in each step, so it is many times slower.",
            **estimated(size),
            code=f"{name}.enable_sequential_cpu_offload()   # in place of {name}.to(...)",
        ),
        loads,
    )


def _offloaded(pipeline: Pipeline, saved: int, why: str) -> Finding:
    call = f"{pipeline.name}.enable_model_cpu_offload()"
    return Finding(
        rule="idle_models",
        title=f"Keep idle models on the host, `{call}` in place of `.to(...)`: about "
        f"{format_bytes(saved)} less",
        evidence=f"The models run one after the other: {pipeline.listed()}. {why}. Each is moved "
        "to the card when it is called, which takes some seconds for each image.",
        **estimated(saved),
        code=f"{call}   # in place of {pipeline.name}.to(...)",
    )


def _running(case: FailedRequest) -> Pipeline | None:
    """Return the one pipeline in whose own code a request failed, or None."""
    if case.caught or not any(_is_of_pipelines(file) for file, _ in _frames(case)):
        return None
    found = pipelines_of(case.card_ledger)
    return found[0] if len(found) == 1 else None


def _is_moved(case: FailedRequest) -> bool:
    return any(
        _is_of_pipelines(file) and PurePath(file).name == _FILE and function == _MOVE
        for file, function in _frames(case)
    )


def _frames(case: FailedRequest) -> Iterator[tuple[str, str]]:
    stack = () if case.refusal is None else case.refusal.stack
    return ((frame.file, frame.function) for frame in stack)


def _is_of_pipelines(file: str) -> bool:
    parts = PurePath(file).parts
    return any(parts[at : at + 2] == _FOLDER for at in range(len(parts)))
