"""Record one step of a model: `python -m tests.oracle.models OUT`.

What is written down of each: the sizes in order, the peaks, and on the virtual card which operator
asked. `compared` names those that differ.
"""

from __future__ import annotations

import argparse
import difflib
import faulthandler
import gc
import json
import os
import random
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracle.compare import EQUAL, NEITHER, kind_of
from tests.oracle.record import UNFINISHED, AllocatorEvents, error_text, results

HUNG_S = 400
"""Of the clock for one model; then the process ends, and the next begins with the next model."""
_CONVOLUTIONS = ("aten.convolution.", "aten.convolution_backward.")
_ALIGNED = 4000
"""Requests up to which two sequences are laid beside each other."""


class RequestOrigins:
    """Record the operator and autograd node behind each request."""

    def __init__(self) -> None:
        from nbmem.virtual.dispatch.card_mode import CardMode
        from nbmem.virtual.hardware.gpu import VirtualGPU

        self.names: list[str] = []
        self._running = [""]
        true_run, true_take = CardMode._run, VirtualGPU.take

        def run(mode: Any, func: Any, *rest: Any) -> Any:
            self._running.append(str(func))
            try:
                return true_run(mode, func, *rest)
            finally:
                self._running.pop()

        def take(gpu: Any, size: int, *rest: Any) -> Any:
            if size:
                self.names.append(self._running[-1])
            return true_take(gpu, size, *rest)

        CardMode._run, VirtualGPU.take = run, take  # type: ignore[method-assign]


def step(torch: Any, program: Any, dtype: Any) -> None:
    """Load, forward, backward, AdamW, as the recordings' loop does."""
    tree = torch.utils._pytree.tree_map
    model = program.model.cuda().train()
    batch = tree(lambda t: t.cuda() if isinstance(t, torch.Tensor) else t, program.batch)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-4)
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        loss = program.loss(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def answer(torch: Any, make: Callable[[], Any], dtype: Any, askers: RequestOrigins | None) -> Any:
    """Return sizes, peaks and operators, or the error."""
    from tests.oracle.zoo import without_weight_initialization

    for seed in (torch.manual_seed, random.seed):
        seed(0)
    try:
        with without_weight_initialization():
            program = make()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        heard = AllocatorEvents(torch)
        if askers is not None:
            askers.names.clear()
        step(torch, program, dtype)
        peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        found = {"sizes": heard.sizes(), "peaks": peaks}
    except Exception as err:  # noqa: BLE001 - whatever it is, it is the finding
        return error_text(err)
    return found if askers is None else {**found, "askers": list(askers.names)}


def record(out: Path, names: list[str], dtype: str, *, virtual: bool) -> None:
    """Append what is not there yet."""
    import torch

    from tests.oracle.zoo import programs

    done = results(out)
    askers = RequestOrigins() if virtual else None
    gc.disable()
    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()  # the libraries' handles and workspaces first
    del x
    with out.open("a") as file:
        for name, make in programs():
            if name in done or (names and not any(part in name for part in names)):
                continue
            file.write(json.dumps({"asked": {name: UNFINISHED}}) + "\n")
            file.flush()
            faulthandler.dump_traceback_later(HUNG_S, exit=True)
            found = answer(torch, make, getattr(torch, dtype), askers)
            file.write(json.dumps({"asked": {name: found}}) + "\n")
            file.flush()
            faulthandler.cancel_dump_traceback_later()


class Finding(NamedTuple):
    """Differences of one model.

    Attributes:
        kind: As of an operator's case.
        allocated: Whether both peaks of allocated bytes are equal; None: one side raised.
        reserved: The error of the reserved peak, as a share.
        askers: The operators whose requests differ, the first one first.
        lasting: Whether they are equal without what is freed as soon as it was taken.
    """

    kind: str
    allocated: bool | None = None
    reserved: float = 0.0
    askers: tuple[str, ...] = ()
    lasting: bool = True

    @property
    def convolutions_alone(self) -> bool:
        """Return whether only work areas of cuDNN differ."""
        return bool(self.askers) and all(one.startswith(_CONVOLUTIONS) for one in self.askers)


def compared(oracle: dict[str, Any], here: dict[str, Any]) -> dict[str, Finding]:
    """Return findings by model, without refusals of both."""
    found = {}
    for name, true in oracle.items():
        if name not in here:
            continue
        sides = true, here[name]
        kind = kind_of(*(s if isinstance(s, str) else sort_frees(s["sizes"]) for s in sides))
        if kind == NEITHER:
            continue
        if any(isinstance(side, str) for side in sides):
            found[name] = Finding(kind)
            continue
        (allocated, reserved), (mine, kept) = (side["peaks"] for side in sides)
        askers = () if kind == EQUAL else tuple(differing_operators(*sides))
        ours, theirs = (lasting(sort_frees(side["sizes"])) for side in sides)
        error = (kept - reserved) / reserved
        found[name] = Finding(kind, allocated == mine, error, askers, ours == theirs)
    return found


def lasting(sizes: list[int]) -> list[int]:
    """Drop blocks that are freed as soon as they are taken."""
    left: list[int] = []
    for size in sizes:
        if size < 0 and left and left[-1] == -size:
            left.pop()
        else:
            left.append(size)
    return left


def sort_frees(sizes: list[int]) -> list[int]:
    """Sort the frees between two requests by size.

    Autocast's cache is a table by address, so it leaves in another order in every process; and
    whatever the order, the next request meets the same free blocks.
    """
    return [
        size
        for freed, run in groupby(sizes, lambda size: size < 0)
        for size in (sorted(run) if freed else run)
    ]


def differing_operators(oracle: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    """Yield the operators whose requests differ, each once, in order."""
    true, mine = ([size for size in side["sizes"] if size > 0] for side in (oracle, here))
    askers = here["askers"]
    if len(askers) != len(mine) or max(len(true), len(mine)) > _ALIGNED:
        pairs = enumerate(zip(true, mine, strict=False))
        at = next((n for n, (one, other) in pairs if one != other), 0)
        yield askers[min(at, len(askers) - 1)] if askers else "?"
        return
    seen = set()
    aligned = difflib.SequenceMatcher(None, true, mine, autojunk=False)
    for what, begin, end, first, last in aligned.get_opcodes():
        if what == "equal":
            continue
        # What torch alone asks for follows what it belongs to: a product's workspace, mostly.
        for name in askers[first:last] or askers[max(0, first - 1) :][:1]:
            if name not in seen:
                seen.add(name)
                yield f"{name} {true[begin:end][:4]} {mine[first:last][:4]}"


HEAD = (
    "| | models | equal | but for convolutions' work areas | else | equal without what is freed at "
    "once | peak allocated equal | mean error of reserved | one side raises |\n| --- |"
    + " --: |"
    * 8
)


def row(label: str, found: dict[str, Finding]) -> str:
    """Format a line of the table."""
    ran = [one for one in found.values() if one.allocated is not None]
    equal = sum(one.kind == EQUAL for one in ran)
    worked = sum(one.kind != EQUAL and one.convolutions_alone for one in ran)
    exact = sum(bool(one.allocated) for one in ran)
    last = sum(one.lasting for one in ran)
    error = 100 * statistics.mean([abs(one.reserved) for one in ran] or [0.0])
    return (
        f"| {label} | {len(found)} | {equal} | {worked} | {len(ran) - equal - worked} | "
        f"{last} | {exact} ({100 * exact / max(1, len(ran)):.1f}%) | {error:.2f}% | "
        f"{len(found) - len(ran)} |"
    )


def rows(label: str, found: dict[str, Finding]) -> Iterator[str]:
    """Yield the line of all models and one for each library."""
    yield row(label, found)
    libraries = dict.fromkeys(name.split()[0] for name in found)
    for library in libraries if len(libraries) > 1 else ():
        own = {name: one for name, one in found.items() if name.split()[0] == library}
        yield row(f"{label}, {library}", own)


def report(oracle: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Every model that differs, and which operators in how many models."""
    lines = []
    counts: Counter[str] = Counter()
    for name, one in compared(oracle, here).items():
        if one.kind == EQUAL:
            continue
        counts.update({asker.split()[0] for asker in one.askers})
        lines.append(f"{name} | {one.kind} | {one.allocated} | {100 * one.reserved:+.2f}%")
        sides = [s for s in (oracle[name], here[name]) if isinstance(s, str)]
        lines += [f"    {text}" for text in [*sides, *one.askers[:8]]]
    return [*lines, "", *(f"{count} {name}" for name, count in counts.most_common())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="parts of models' names (all)")
    parser.add_argument("--dtype", default="float32", help="that of autocast, or float32")
    parser.add_argument("--virtual", metavar="CARD", help="on this virtual card; else as it is")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.virtual:
        from nbmem import virtual

        virtual.activate(options.virtual)
    record(options.out, options.names, options.dtype, virtual=bool(options.virtual))
    sys.stdout.flush()
    os._exit(0)  # The stand-in's threads may abort a process that takes itself apart.


if __name__ == "__main__":
    main()
