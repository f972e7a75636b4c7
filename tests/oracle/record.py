"""What each of torch's operators asks of the allocator: `python -m tests.oracle.record OUT.json`.

Torch's own database of operators (op_db) has the samples. Each is called, and where it has a
gradient, twice: with a gradient that is dense, as a next layer gives it, and with one that is
expanded from a number, as a sum's or a mean's is. What is written down are the sizes that are
allocated, and, negative, those that are freed, in order.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import signal
import sys
import types
import unittest
import warnings
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 4
"""Of each operator, evenly from the list of its samples."""
PATIENCE_S = 20
"""Of the processor, so that a busy machine makes no difference."""
_EVENTS = 20_000


class TookTooLongError(Exception):
    """An operator did not end in time."""


def database() -> list[Any]:
    """All of torch's OpInfos; they want a package that only torch's own tests use."""
    sys.modules.setdefault("expecttest", types.ModuleType("expecttest")).__dict__.setdefault(
        "TestCase", unittest.TestCase
    )
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


class Heard:
    """The allocator's events since a moment, of blocks that were born after it."""

    def __init__(self, torch: Any) -> None:
        self._memory = torch.cuda.memory
        self._memory._record_memory_history(enabled=None)
        self._memory._record_memory_history(max_entries=_EVENTS, context=None)
        self._start = len(self._events())

    def _events(self) -> list[dict[str, Any]]:
        return self._memory._snapshot()["device_traces"][0]

    def sizes(self) -> list[int]:
        """Bytes allocated and, negative, freed, in order."""
        born: set[int] = set()
        found = []
        for event in self._events()[self._start :]:
            if event["action"] == "alloc":
                born.add(event["addr"])
                found.append(event["size"])
            elif event["action"] == "free_completed" and event["addr"] in born:
                born.remove(event["addr"])
                found.append(-event["size"])
        return found


def differentiable(torch: Any, results: Any) -> list[Any]:
    listed = results if isinstance(results, (tuple, list)) else [results]
    return [y for y in listed if isinstance(y, torch.Tensor) and y.requires_grad]


def forward(torch: Any, op: Any, sample: Any) -> list[int]:
    heard = Heard(torch)
    kept = op(sample.input, *sample.args, **sample.kwargs)
    found = heard.sizes()
    del kept
    return found


def backward(torch: Any, op: Any, sample: Any, *, dense: bool) -> list[int] | None:
    """None: nothing of it has a gradient."""
    results = differentiable(torch, op(sample.input, *sample.args, **sample.kwargs))
    if not results:
        return None
    if dense:
        gradients = [torch.ones_like(y) for y in results]
    else:
        gradients = [torch.ones((), dtype=y.dtype, device=y.device).expand_as(y) for y in results]
    heard = Heard(torch)
    torch.autograd.backward(results, gradients)
    return heard.sizes()


def asked(torch: Any, op: Any, dtype: Any) -> dict[str, list[int]]:
    """By sample and what is done with it."""
    found: dict[str, list[int]] = {}
    trained = bool(op.supports_autograd and dtype in op.backward_dtypes)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    samples = list(op.sample_inputs("cuda", dtype, requires_grad=trained))
    step = max(1, -(-len(samples) // SAMPLES))
    for number, sample in enumerate(samples[::step]):
        found[f"{number} forward"] = forward(torch, op, sample)
        for dense in (True, False) if trained else ():
            sizes = backward(torch, op, sample, dense=dense)
            if sizes is not None:
                found[f"{number} backward, {'dense' if dense else 'expanded'}"] = sizes
    return found


def late(*_: object) -> None:
    raise TookTooLongError(f"{PATIENCE_S} s")


def record(names: list[str], name: str) -> dict[str, Any]:
    """By operator: what it asked for, or a sentence that says why it did not run."""
    import torch

    dtype, found = getattr(torch, name), {}
    signal.signal(signal.SIGPROF, late)
    gc.disable()  # else a cycle that an earlier operator left is freed in the midst of another
    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()  # the libraries' handles and workspaces first
    del x
    for op in database():
        key = op.formatted_name
        if dtype not in op.dtypesIfCUDA or (names and op.name not in names and key not in names):
            continue
        try:
            signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
            found[key] = asked(torch, op, dtype)
        except Exception as err:  # noqa: BLE001 - whatever it is, it is the finding
            first = (str(err).splitlines() or [""])[0]
            found[key] = f"{type(err).__name__}: {first[:120]}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", help="operators (all)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--virtual", metavar="CARD", help="on this virtual card; else as it is")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.virtual:
        from nbmem import virtual

        virtual.activate(options.virtual)
    options.out.write_text(json.dumps(record(options.names, options.dtype)))


if __name__ == "__main__":
    main()
