"""Record operators' requests: `python -m tests.oracle.record OUT.jsonl`.

What is written down are the sizes that are allocated, and, negative, those that are freed, in
order. A line for each operator, at once: what a crash or a person ends goes on where it was.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.oracle.launch import follow_values
from tests.oracle.samples import OperatorCases, database

PATIENCE_S = 30
"""Of the processor for one operator, so that a busy machine makes no difference."""
HUNG_S = 180
"""Of the clock; then the process ends, and the next begins with the next operator."""
UNFINISHED = "did not end"
FLOATS = 1 << 18
"""Floats that the virtual card follows here: the values that the oracle's kernels would have."""
_EVENTS = 200_000


class TookTooLongError(Exception):
    """An operator did not end in time."""


class AllocatorEvents:
    """Events of the allocator since a moment, of newer blocks."""

    def __init__(self, torch: Any) -> None:
        self._memory = torch.cuda.memory
        self._memory._record_memory_history(enabled=None)
        self._memory._record_memory_history(max_entries=_EVENTS, context=None)
        self._start = len(self._events())

    def _events(self) -> list[dict[str, Any]]:
        return self._memory._snapshot()["device_traces"][0]

    def sizes(self) -> list[int]:
        """Return bytes allocated and, negative, freed, in order."""
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


def error_text(err: BaseException) -> str:
    return f"{type(err).__name__}: {(str(err).splitlines() or [''])[0][:120]}"


def record_case(torch: Any, prepare: Callable[[], Any]) -> list[int] | str | None:
    """Record a case's requests or error; None without a gradient."""
    try:
        act = prepare()
        if act is None:
            return None
        listening = AllocatorEvents(torch)
        kept = act()
        found = listening.sizes()
        del kept
    except TookTooLongError:
        raise
    except Exception as err:  # noqa: BLE001 - whatever it is, it is the finding
        return error_text(err)
    return found


def record_operator(torch: Any, one: OperatorCases) -> dict[str, Any] | str:
    """Record every case of an operator; return a sentence without cases."""
    found: dict[str, Any] = {}
    try:
        signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
        for case, prepare in one.cases():
            answer = record_case(torch, prepare)
            if answer is not None:
                found[case] = answer
    except Exception as err:  # noqa: BLE001
        return error_text(err)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return found


def raise_timeout(*_: object) -> None:
    raise TookTooLongError(f"{PATIENCE_S} s")


def results(path: Path) -> dict[str, Any]:
    """Read a file by operator: later lines win, torn lines are skipped."""
    found: dict[str, Any] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.update(json.loads(line)["asked"])
        except ValueError:
            continue
    return found


def record(out: Path, names: list[str], dtype: str) -> None:
    """Append the missing operators."""
    import torch

    done = results(out)
    signal.signal(signal.SIGPROF, raise_timeout)
    gc.disable()  # else a cycle that an earlier operator left is freed in the midst of another
    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()  # the libraries' handles and workspaces first
    del x
    with out.open("a") as file:
        for one in database(torch, getattr(torch, dtype)):
            if one.name in done or (names and not is_selected(one.name, names)):
                continue
            write(file, one.name, UNFINISHED, 0)
            faulthandler.dump_traceback_later(HUNG_S, exit=True)
            begin = time.process_time()
            write(file, one.name, record_operator(torch, one), time.process_time() - begin)
            faulthandler.cancel_dump_traceback_later()


def is_selected(name: str, names: list[str]) -> bool:
    """Match a whole operator name, with dots or underscores."""
    return name in {one.replace(".", "_") for one in names} or name in names


def write(file: Any, name: str, answer: Any, seconds: float) -> None:
    file.write(json.dumps({"asked": {name: answer}, "seconds": round(seconds, 1)}) + "\n")
    file.flush()


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
        from nbmem.virtual.tensors import values

        virtual.activate(options.virtual)
        values.FLOATS = FLOATS
    else:
        follow_values()
    record(options.out, options.names, options.dtype)
    os._exit(0)  # The stand-in's threads may abort a process that takes itself apart.


if __name__ == "__main__":
    main()
