"""Rounds of traces that must leave nothing behind.

Each scene is played in a process of its own. A control does the same without nbmem, since IPython
keeps what it has run and torch what it has made.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

from IPython.core.interactiveshell import InteractiveShell

import nbmem
from nbmem import virtual
from nbmem.frontends.notebook import cell_hooks, trace_history
from tests.leaks import census
from tests.leaks import object_paths as ways

KEPT = 3
"""Traces and lines of the history that are kept here: a bound that the first rounds reach."""

STEP = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
model = model.to(place)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(5, 8, device=place)).sum()
    loss.backward()
    optimizer.step()
"""
INTERRUPTED = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
TRACES = "import nbmem\n"
NESTED = """
with nbmem.trace("outer"):
    with nbmem.trace("inner"):
        model(torch.randn(5, 8, device=place))
"""
IN_A_THREAD = """
import threading
def work():
    with nbmem.trace("thread"):
        model(torch.randn(5, 8, device=place))
thread = threading.Thread(target=work)
thread.start()
thread.join()
del thread, work
"""
TOO_LARGE = "torch.empty(1 << 45, device=place)\n"
FAILS = "1 / 0\n"
CELLS = {
    "good": STEP,
    "failing": STEP + FAILS,
    "too large": STEP + TOO_LARGE,
    "interrupted": STEP + INTERRUPTED,
    "nested": STEP + TRACES + NESTED,
    "in a thread": STEP + TRACES + IN_A_THREAD,
}


class Notebook:
    """An IPython shell, which runs cells and drops what they print."""

    def __init__(self, place: str) -> None:
        self.shell = InteractiveShell.instance()
        self.shell.user_ns["place"] = place

    def run(self, code: str) -> None:
        """Run a cell as a front end does."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.shell.run_cell(code, store_history=True)
        self.shell.history_manager.outputs.clear()  # what was shown, for `%notebook`


def cells(place: str, names: list[str]) -> list[census.Growth]:
    """Traced cells in a notebook."""
    notebook = Notebook(place)

    def plain() -> None:
        for name in names:
            notebook.run(_untraced(CELLS[name]))

    def work() -> None:
        for name in names:
            notebook.run(f"%%memtrace\n{CELLS[name]}")

    control = census.counted(plain, ROUNDS, intervals=1)
    notebook.run("%load_ext nbmem")
    return census.grown_by(work, ROUNDS, control)


def reloads(place: str, names: list[str]) -> list[census.Growth]:
    """Traced cells between which the extension goes and comes."""
    notebook = Notebook(place)

    def plain() -> None:
        for name in names:
            notebook.run(_untraced(CELLS[name]))
            notebook.run("pass")
        notebook.run("pass")
        notebook.run("pass")

    def work() -> None:
        notebook.run("%load_ext nbmem")
        for name in names:
            notebook.run(f"%%memtrace\n{CELLS[name]}")
            notebook.run("%reload_ext nbmem")
        notebook.run("%unload_ext nbmem")

    return census.grown_by(work, ROUNDS, census.counted(plain, ROUNDS, intervals=1))


def blocks(place: str, names: list[str]) -> list[census.Growth]:
    """Traced blocks of a program: `with nbmem.trace()`."""
    codes = [compile(CELLS[name], f"<{name}>", "exec") for name in names]

    def work() -> None:
        for code in codes:
            space = {"place": place}
            with contextlib.suppress(Exception, KeyboardInterrupt), nbmem.trace("block") as t:
                exec(code, space)
            str(t)

    return census.grown_by(work, ROUNDS)


SCENES: dict[str, Callable[[str, list[str]], list[census.Growth]]] = {
    "cells": cells,
    "reloads": reloads,
    "blocks": blocks,
}
ROUNDS = 2


def play(scene: str, card: str | None, names: list[str]) -> list[str]:
    """Play a scene in this process, on a virtual card if one is named.

    Returns:
        A line for each thing that grows; and, where nbmem is gone at the end, for each thing of
        its own that something else leads to.
    """
    trace_history.MAX_CELLS = cell_hooks.MAX_ROWS = KEPT
    with contextlib.nullcontext() if card is None else virtual.activated(card):
        grown = SCENES[scene]("cpu" if card is None else "cuda", names)
    gone = scene != "cells" and card is None  # a virtual card registers rules in torch for good
    left = ways.foreign_references("nbmem", "tests", "__main__", "__mp_main__") if gone else []
    return [*map(str, grown), *(f"      left  {way}" for way in left)]


def _untraced(code: str) -> str:
    code = f"from IPython.display import display\ndisplay('a report')\n{code}"
    return code.replace("nbmem.trace", "memoryview").replace("import nbmem\n", "")
