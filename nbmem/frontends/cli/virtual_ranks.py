"""`nbmem run SCRIPT --ranks N`: run the ranks that can differ.

They run on virtual cards, each in a process with torchrun's environment. The first and the last
rank are run, since shards that do not divide evenly differ there. Ranks that they wait for are run,
too: the stages of a pipeline. The user can name others. Each session records the ranks that it
represents.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.files.atomic_write import new_folder
from nbmem.core.files.untrusted_input import is_folder
from nbmem.core.session.ranks import require_inside
from nbmem.frontends.cli.subcommand import EXIT_OK, print_message
from nbmem.virtual import rank_messages
from nbmem.virtual.virtual_worlds import VirtualWorld, environment
from nbmem.virtual.virtual_worlds import layout as world_layout

if TYPE_CHECKING:
    import argparse


_PAUSE_S = 0.05
_SHOWN = 15
"""Lines of a failed rank's output that are shown."""


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the options for the ranks that run on virtual cards."""
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=int,
        help="run as torchrun would on N virtual cards, the ranks that can differ",
    )
    parser.add_argument(
        "--nodes", metavar="N", type=int, help="of how many machines; the default has 8 cards each"
    )
    parser.add_argument(
        "--rank", metavar="N,N", help="with --ranks: run these ranks instead of first and last"
    )


def run_ranks(options: argparse.Namespace) -> int:
    """Run the ranks and report the world.

    The options are those of `nbmem run`.

    Raises:
        UsageError: There is no such world, or no such rank in it.
    """
    layout = world_layout(options.gpu, options.ranks, options.nodes)
    first = _named(options.rank, layout.world)
    kept = options.save
    if kept is not None and not is_folder(kept):
        raise UsageError(
            f"--ranks saves a session for each rank. Name a folder, with a slash at its end: "
            f"--save {Path(kept).with_suffix('')}/"
        )
    with tempfile.TemporaryDirectory(prefix="nbmem-ranks-") as meet:
        folder = new_folder(Path(meet, "sessions") if kept is None else kept)
        before = set(folder.iterdir())
        runs = _Runs(layout, options, Path(meet), folder)
        code = runs.until_done(first)
        _save_represented_ranks(layout, runs, set(folder.iterdir()) - before, options.rank)
        # A failed rank may have failed before that point.
        if not code and not any(
            rank_messages.joined(Path(meet), rank).exists() for rank in runs.codes
        ):
            print_message(
                f"{Path(options.script).name} never called init_process_group: each of its "
                f"{layout.world} ranks is taken for a program of its own."
            )
        from nbmem.frontends.cli import report

        asked = Namespace(**vars(options))
        asked.file, asked.rank, asked.max_size, asked.save = f"{folder}/", None, None, None
        written = report.run(asked)
    return code or written


def _named(text: str | None, world: int) -> list[int]:
    if text is None:
        return sorted({0, world - 1})
    try:
        named = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--rank {text}: name ranks by their numbers, as in 0,37.") from None
    for rank in named:
        require_inside(rank, world)
    return named


class _Runs:
    """The processes of the ranks.

    Attributes:
        codes: Exit codes by rank; None for a running one.
    """

    def __init__(
        self, layout: VirtualWorld, options: argparse.Namespace, meet: Path, folder: Path
    ) -> None:
        self._layout, self._options = layout, options
        self._meet, self._folder = meet, folder
        self._run = uuid.uuid4().hex
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.codes: dict[int, int | None] = {}

    def until_done(self, first: Sequence[int]) -> int:
        """Run ranks and those they wait for; return the first error code.

        0 if all of them exit with 0.
        """
        waiting = deque(first)
        try:
            while waiting or self._processes:
                while waiting and len(self._processes) < (os.cpu_count() or 1):
                    self._start(waiting.popleft(), speaks=not self.codes)
                self._poll()
                time.sleep(_PAUSE_S)
        finally:
            for process in self._processes.values():
                process.kill()
        return next((code for code in self.codes.values() if code), EXIT_OK)

    def _poll(self) -> None:
        for rank, process in tuple(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[rank]
                self.codes[rank] = code
                rank_messages.ended(self._meet, rank).touch()
                if code:
                    self._report_failure(rank)
        for rank in rank_messages.all_wanted(self._meet):
            # A waiting rank uses no core, so it is not counted.
            if rank not in self.codes and rank < self._layout.world:
                self._start(rank, speaks=False)

    def _start(self, rank: int, *, speaks: bool) -> None:
        if rank in self.codes:
            return
        options, layout = self._options, self._layout
        command = [sys.executable, "-m", "nbmem", "run", options.script, "--gpu", layout.cards]
        command += ["--save", f"{self._folder}/", "--quiet"]
        command += ["--stacks"] if options.stacks else []
        command += ["--", *options.script_arguments]
        given = {
            **os.environ,
            rank_messages.FOLDER: str(self._meet),
            **environment(layout, rank, self._run),
        }
        self.codes[rank] = None
        with self._log(rank).open("wb") as log:
            out = None if speaks else log
            self._processes[rank] = subprocess.Popen(  # noqa: S603 - this very program
                command, env=given, stdout=out, stderr=out
            )

    def _log(self, rank: int) -> Path:
        return self._meet / f"log-{rank}"

    def _report_failure(self, rank: int) -> None:
        lines = self._log(rank).read_text("utf-8", "replace").splitlines()[-_SHOWN:]
        print_message("\n".join([f"rank {rank} ended with exit code {self.codes[rank]}.", *lines]))

    @property
    def stages(self) -> list[int]:
        """The ranks of a pipeline, one for each stage.

        Follow the messages of rank 0; without any, the result is rank 0 alone.
        """
        linked = {0}
        pairs = {tuple(map(int, name.split("-")[1:4:2])) for name in self._letters()}
        while more := {b for pair in pairs for a, b in (pair, pair[::-1]) if a in linked} - linked:
            linked |= more
        return sorted(linked)

    def _letters(self) -> Iterable[str]:
        return (path.name for path in self._meet.glob("from-*-to-*-*"))


def _save_represented_ranks(
    layout: VirtualWorld, runs: _Runs, files: Iterable[Path], named: str | None
) -> None:
    """Save in each session the ranks it represents and its machine."""
    from nbmem.core.files.session import open_session, save_session

    stand_ins = {} if named is not None else _stand_ins(layout.world, list(runs.codes), runs.stages)
    for file in files:
        try:
            session = open_session(file)
        except NbmemError:
            continue  # Read the output of an incomplete rank as it is.
        if session.rank is None:
            continue
        number = session.rank.number
        nodes = layout.world // layout.local
        host = f"node {number // layout.local}" if nodes > 1 else session.rank.host
        others = tuple(stand_ins.get(number, ()))
        save_session(
            replace(session, rank=replace(session.rank, stands_for=others, host=host)), file
        )


def _stand_ins(world: int, run: list[int], stages: list[int]) -> dict[int, list[int]]:
    """Map each rank that ran to the ranks it represents.

    It is the lowest one of their pipeline stage.
    """
    apart = stages[1] - stages[0] if len(stages) > 1 else world
    lowest: dict[int, int] = {}
    for rank in sorted(run):
        lowest.setdefault(rank // apart % len(stages), rank)
    found: dict[int, list[int]] = {}
    for rank in set(range(world)) - set(run):
        found.setdefault(lowest.get(rank // apart % len(stages), min(run)), []).append(rank)
    return found
