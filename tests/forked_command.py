"""Run `nbmem` in a process forked from one that has imported torch.

It takes a third of a second of CPU; a new process takes five, for the imports alone.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch._decomp.decompositions_for_jvp",
    "torch.utils.flop_counter",
    "nbmem.api.device_selection",
    "nbmem.api.tracing",
    "nbmem.capture.record.recorder",
    "nbmem.capture.record.recording",
    "nbmem.estimates.api",
    "nbmem.frontends.cli",
    "nbmem.report.tips.engine",
    "nbmem.views.exports",
    "nbmem.virtual.packages.torchvision",
    "nbmem.virtual.patches.activation",
    "nbmem.virtual.patches.compiled.compiler",
]
"""What every run imports: a process that has it is forked for each run."""


def run_forked(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `nbmem ARGUMENTS` and return the process as subprocess.run does.

    Args:
        arguments: Behind `nbmem`.
        folder: Its working folder.
        env: Variables for its environment, besides this process's own.
        timeout: Seconds after which it is killed, and its exit status is -9.
    """
    with TemporaryDirectory() as outputs:
        files = [str(Path(outputs, name)) for name in ("out", "err")]
        environment = {**os.environ, **env}
        process: Any = _context().Process(  # type: ignore[attr-defined]
            target=_run, args=(list(arguments), str(folder), environment, files)
        )
        with _plain_main():
            process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
        texts = [Path(file).read_text(encoding="utf-8") for file in files]
    return subprocess.CompletedProcess(["nbmem", *arguments], process.exitcode, *texts)


@contextmanager
def _plain_main() -> Iterator[None]:
    """Hide `__main__`, which multiprocessing reads to import it again.

    Tests put a module without `__spec__` in its place.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@cache
def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(arguments: list[str], folder: str, env: dict[str, str], files: list[str]) -> None:
    for number, file in enumerate(files, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv[1:] = arguments
    runpy.run_module("nbmem", run_name="__main__", alter_sys=True)
