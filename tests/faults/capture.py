"""Make every function of capture fail while a notebook is traced.

    python -m tests.faults.capture             every kind of fault, at the entry and at random lines
    python -m tests.faults.capture --quick     one kind, at the entry
    python -m tests.faults.capture --minutes 9 as many of them as fit into nine minutes, at random
    python -m tests.faults.capture --part 1/2  the first half of the same random order

A trial is a notebook in a shell of its own: the extension is loaded, a cell trains on a virtual
card, one runs out of memory, one asks nbmem something, the extension goes. It has survived where
each cell's value, error and random numbers and the user's peak counter are those of a run without
nbmem, where nothing of nbmem's is left anywhere, where there is a session or a sentence, and where
the next recording is whole.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import io
import itertools
import math
import operator
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from IPython.core.interactiveshell import InteractiveShell

import nbmem
import nbmem.frontends.notebook.extension
from nbmem import virtual
from nbmem.capture.record import recording
from tests.faults.injector import Fault, Target, functions
from tests.host_safety.process_state import state, state_differences

CAPTURE = (
    "nbmem.api.tracing",
    "nbmem.capture.record",
    "nbmem.capture",
    "nbmem.frontends.sidebar",
    "nbmem.frontends.notebook",
    "nbmem.api.device_selection",
    "nbmem.api.freeing",
    "nbmem.api.live_tensors",
)
THE_DOOR = (
    "nbmem.core.runtime.entry_points",
    "nbmem.core.runtime.interrupts",
    "nbmem.frontends.notebook.error_boundary",
    "nbmem.capture.hooks.data_writes.DataPatch.__get__",
    "nbmem.capture.patches.method_patches.AttributePatch.__get__",
    "nbmem.capture.patches.method_patches.AttributePatch.__set__",
    "nbmem.capture.patches.method_patches.MethodPatch.__get__",
    "nbmem.capture.torch_memory.peak_counters.PeakView._reader",
    "nbmem.capture.torch_memory.peak_counters.PeakView._resetter",
)
"""What turns a fault into a note cannot itself be guarded by what turns a fault into a note; and
the few lines of a descriptor stand in torch's own path, where a guard costs each inner call."""
NOT_NBMEMS_OWN = (
    "nbmem.api.tracing.Trace.report",   # what a Python user calls by name
    "nbmem.api.tracing.Trace.save",
    "nbmem.api.tracing.Trace.export",
    "nbmem.api.tracing.Trace.session",
    "nbmem.api.tracing.open",
)  # fmt: skip
RELEASES = (
    "nbmem.frontends.notebook.cell_hooks.CellHooks.close",
    "nbmem.frontends.notebook.completion.Completion.remove",
    "nbmem.frontends.notebook.extension.Extension._chains",
    "nbmem.frontends.notebook.extension.Extension.unload",
    "nbmem.frontends.notebook.extension.unload_ipython_extension",
    "nbmem.frontends.notebook.sidebar.comms.Comms.close",
    "nbmem.frontends.notebook.sidebar.output.CellOutput.unwatch",
    "nbmem.frontends.notebook.sidebar.sidebar.StatusLine.end",
    "nbmem.frontends.notebook.sidebar.sidebar.Sidebar.close",
    "nbmem.frontends.notebook.sidebar.sidebar.Sidebar.trace_ended",
    "nbmem.frontends.notebook.magics.Magics.remove",
    "nbmem.frontends.sidebar.hub.Hub.close",
    "nbmem.capture.patches.compilations.Compilations._both",
    "nbmem.capture.patches.compilations.Compilations._leave_imports",
    "nbmem.capture.patches.compilations.Compilations.stop_watching",
    "nbmem.capture.hooks.data_writes.DataPatch.revert",
    "nbmem.capture.torch_memory.allocator_history.HistoryProbe._record",
    "nbmem.capture.torch_memory.allocator_history.HistoryProbe.stop",
    "nbmem.capture.patches.method_patches.AttributePatch.revert",
    "nbmem.capture.patches.method_patches.MethodPatch.revert",
    "nbmem.capture.patches.name_patches.NamePatch.revert",
    "nbmem.capture.patches.name_patches.FunctionPatch.revert",
    "nbmem.capture.hooks.training_hooks.TrainingHooks.remove",
    "nbmem.capture.record.card_sampler.Sampler.stop",
)
"""What takes something out and is the only one that can: it fails once, since for ever it would be
as if nbmem had no way to take it out at all."""
ERRORS: dict[str, Callable[[], BaseException]] = {
    "Exception": lambda: ZeroDivisionError("by the injector"),
    "MemoryError": MemoryError,
    "RecursionError": lambda: RecursionError("maximum recursion depth exceeded"),
    "KeyboardInterrupt": KeyboardInterrupt,
}
PREPARE = """
import torch
from torch import nn
torch.manual_seed(1)
def step(model, optimizer, rows=64):
    loss = model(torch.randn(rows, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TRAIN = """
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.Adam(model.parameters())
kept = [torch.ones(1 << 20, device="cuda")]
for _ in range(2):
    step(model, optimizer)
with torch.no_grad():
    model(torch.ones(2, 256, device="cuda"))
round(float(torch.rand(3).sum()), 6)
"""
FAIL = """
try:
    torch.empty(1 << 40, device="cuda")
except torch.OutOfMemoryError:
    caught = True
raise ValueError("the user's own")
"""
CELLS = (TRAIN, FAIL)
LAST = "step(model, optimizer)\n'last'"


class Outcome(NamedTuple):
    """User-visible outcome of a cell, without what nbmem prints."""

    value: Any
    error: str | None
    randomness: int
    peak: int


class Trial(NamedTuple):
    """Outcome of one run of the notebook."""

    outcomes: list[Outcome]
    sessions: list[bool]
    output: str
    said_later: str
    left: list[str]


class _Publisher:
    """Fake of the kernel's publisher that the line under a cell needs."""

    topic = b""
    is_publishing = False
    pub_socket = None

    def __init__(self) -> None:
        self.hooks: list[Any] = []
        self.session = SimpleNamespace(send=lambda *_args, **_kwargs: None)

    def register_hook(self, hook: Any) -> None:
        self.hooks.append(hook)

    def unregister_hook(self, hook: Any) -> None:
        if hook in self.hooks:
            self.hooks.remove(hook)

    def publish(self, *_args: Any, **_kwargs: Any) -> None:
        for hook in tuple(self.hooks):
            hook({"header": {"msg_type": "display_data"}})


def notebook(fault: Fault | None = None, *, loaded: bool = True) -> Trial:
    """Run the notebook, with a fault in nbmem or without."""
    with virtual.activated("T4"), _shell() as shell:
        _run(shell, PREPARE)
        _run(shell, "step(nn.Linear(256, 256).cuda(), torch.optim.SGD([torch.ones(1)]))")
        before = _state(shell)
        written = io.StringIO()
        outcomes, sessions = [], []
        with contextlib.redirect_stderr(written), contextlib.redirect_stdout(written):
            with fault or contextlib.nullcontext():
                if loaded:
                    _magic(shell, "load_ext", written)
                for code in CELLS:
                    outcomes.append(_run(shell, f"%%memtrace\n{code}" if loaded else code))
                    sessions.append(_has_session(shell))
                if loaded:
                    for line in (
                        "%nbmem",
                        "%nbmem history",
                        "%nbmem tips",
                        "%nbmem top",
                        "x = %memtrace 1",
                    ):
                        _run(shell, line)
            output = written.getvalue()
            after_fault = io.StringIO()
            with contextlib.redirect_stderr(after_fault), contextlib.redirect_stdout(after_fault):
                if loaded:
                    _magic(shell, "reload_ext", written)
                for code, outcome in zip(CELLS, tuple(outcomes), strict=True):
                    if outcome.error == "KeyboardInterrupt":
                        _run(shell, code)  # as its user would
                outcomes.append(_run(shell, f"%%memtrace\n{LAST}" if loaded else LAST))
                sessions.append(_has_session(shell))
                if loaded and sessions[-1]:
                    nbmem.frontends.notebook.extension._LOADED[
                        shell
                    ].tracer.last.report()  # its books balance
                with fault or contextlib.nullcontext():
                    if loaded:
                        _magic(shell, "unload_ext", written)
                if loaded:
                    _magic(shell, "load_ext", written)
                    _magic(shell, "unload_ext", written)
        for thread in threading.enumerate():
            if "nbmem" in thread.name:
                thread.join(timeout=2)
        left = state_differences(before, _state(shell))
        return Trial(outcomes, sessions, output, after_fault.getvalue(), left)


def failure_reason(trial: Trial, usual: Trial, error: str) -> str | None:
    """Return the reason why a trial failed; None if it passed."""
    interrupts = error == "KeyboardInterrupt"
    if "could not load the extension" in trial.output or (
        interrupts and "`%%memtrace` not found" in trial.output
    ):  # then it is not there, and says so
        return f"left behind: {trial.left}" if trial.left else None
    for index, (one, wanted) in enumerate(zip(trial.outcomes, usual.outcomes, strict=True)):
        last = index == len(usual.outcomes) - 1
        if interrupts and not last and one.error == "KeyboardInterrupt":
            continue  # which was the user's; what it left undone changes the next one's peak
        if one._replace(peak=0) != wanted._replace(peak=0) or (one != wanted and not interrupts):
            return f"cell {index} was {one} and not {wanted}"
        if not trial.sessions[index] and (last or not trial.output):
            later = f"; what was said after the fault: {trial.said_later!r}" if last else ""
            return f"cell {index} has neither a session nor a sentence{later}"
    if trial.left:
        return f"left behind: {'; '.join(trial.left)}"
    if (
        "Traceback" in trial.output.replace("by the injector", "")
        and "Error in callback" in trial.output
    ):
        return "a traceback of nbmem's own was printed"
    return None


def attempt(
    target: Target, error: str, *, at: str = "entry", seed: int = 0
) -> tuple[str | None, int]:
    """Try one fault; return the failure and how often it was raised."""
    fault = Fault(target, ERRORS[error], at=at, seed=seed, once=target.name in RELEASES)
    recording._running.clear()
    try:
        trial = notebook(fault)
    except BaseException:  # noqa: BLE001 - whatever reached us reached the user
        fault.disarm()
        return f"it reached the user: {traceback.format_exc(limit=-3)}", fault.hits
    return failure_reason(trial, run_without_nbmem(), error), fault.hits


_USUAL: list[Trial] = []


def run_without_nbmem() -> Trial:
    """Run the notebook without nbmem."""
    if not _USUAL:
        notebook(loaded=False)  # what torch makes once
        bare = notebook(loaded=False)
        _USUAL.append(bare._replace(sessions=[True] * len(bare.outcomes)))
    return _USUAL[0]


@contextlib.contextmanager
def small_heap() -> Iterator[None]:
    """Restrict heap walks to objects that the notebook made."""
    run_without_nbmem()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def called_targets() -> list[Target]:
    """Return the functions of capture that the notebook calls."""
    seen = set()

    def watch(frame: Any, _event: str, _argument: Any) -> None:
        seen.add(frame.f_code)

    run_without_nbmem()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        notebook()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    every = functions(*CAPTURE, skip=(*THE_DOOR, *NOT_NBMEMS_OWN))
    return [one for one in every if not seen.isdisjoint(one.codes())]


# --- a shell


@contextlib.contextmanager
def _shell() -> Iterator[Any]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    loop = SimpleNamespace(
        add_callback=lambda call, *args: call(*args),
        call_later=lambda _seconds, call, *args: call(*args),
    )
    shell.kernel = SimpleNamespace(io_loop=loop, get_parent=dict, _allow_stdin=True)
    shell.display_pub = _Publisher()
    try:
        yield shell
    finally:
        nbmem.unload_ipython_extension(shell)
        # Each of these would keep all of the shell, and the next one's `__main__` this one's.
        shell.history_manager.save_thread.stop()
        atexit.unregister(shell.atexit_operations)
        shell.restore_sys_module_state()
        shell.user_ns.clear()  # on a card that lives on, what it names would be the next one's
        InteractiveShell.clear_instance()


def _run(shell: Any, code: str) -> Outcome:
    torch.manual_seed(3)
    with contextlib.suppress(KeyboardInterrupt):  # the user's, between two cells
        torch.cuda.reset_peak_memory_stats()
    result = shell.run_cell(code, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    return Outcome(
        value=result.result,
        error=None if error is None else type(error).__name__,
        randomness=hash(torch.random.get_rng_state().numpy().tobytes()),
        peak=torch.cuda.max_memory_allocated(),
    )


def _magic(shell: Any, name: str, written: io.StringIO) -> None:
    """Load or unload the extension; print an error as IPython does."""
    try:
        shell.run_line_magic(name, "nbmem")
    except KeyboardInterrupt:
        written.write("interrupted")


def _has_session(shell: Any) -> bool:
    from nbmem.frontends.notebook.extension import _LOADED

    loaded = _LOADED.get(shell)
    trace = None if loaded is None else loaded.tracer.last
    return trace is not None and trace.session is not None


# --- what may be left behind


def _state(shell: Any) -> dict[str, Any]:
    """Return everything in which nbmem puts something."""
    manager = shell.input_transformer_manager
    return state() | {
        "the memory history": torch._C._cuda_isHistoryEnabled(),
        "an event of the shell": {k: len(v) for k, v in shell.events.callbacks.items()},
        "a transformer": [len(manager.cleanup_transforms), len(manager.line_transforms)],
        "a magic": sorted(shell.magics_manager.magics["line"]),
        "a completion": sorted(
            name for name in ("complete", "completions") if name in vars(shell.Completer)
        ),
        "a hook of the publisher": len(shell.display_pub.hooks),
    }


def _part(trials: Iterable[tuple[Target, str, Any]], part: int, parts: int) -> list[Any]:
    """Return a part of the trials in a fixed random order."""
    drawn = [(random.Random(f"{one.name} {rest}").random(), one, *rest) for one, *rest in trials]
    drawn.sort(key=operator.itemgetter(0))
    return [trial for at, *trial in drawn if part - 1 <= at * parts < part]


def main() -> int:
    """Try every function; 0 if every trial survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one kind of fault, at the entry")
    parser.add_argument("--only", default="", help="only functions whose name contains this")
    parser.add_argument("--seeds", type=int, default=2, help="random lines of each function")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then the table so far")
    parser.add_argument("--deaf", action="store_true", help="Ctrl-C is ignored, as under `&`")
    parser.add_argument("--part", default="1/1", help="K/N: the Kth of N parts, for N processes")
    parser.add_argument("--begin", type=int, default=0, help="with this trial of the part")
    options = parser.parse_args()
    deaf, hears = signal.SIG_IGN, signal.default_int_handler  # whatever the shell has chosen
    signal.signal(signal.SIGINT, deaf if options.deaf else hears)
    count: Counter[tuple[str, str]] = Counter()
    targets = [one for one in called_targets() if options.only in one.name]
    kinds = ["Exception"] if options.quick else list(ERRORS)
    places = [("entry", 0)] + ([] if options.quick else [("line", s) for s in range(options.seeds)])
    trials = _part(itertools.product(targets, kinds, places), *map(int, options.part.split("/")))
    end = time.monotonic() + 60 * options.minutes
    with small_heap():
        for target, error, (at, seed) in trials[options.begin :]:
            if time.monotonic() > end:
                break
            why, hits = attempt(target, error, at=at, seed=seed)
            outcome = "lost" if why else "survived" if hits else "not met"
            count[error, outcome] += 1
            if why:
                print(f"LOST {target.name} {error} {at} {seed}: {why}", flush=True)
    tried = sum(count.values())
    print(
        f"{tried:,} of {len(trials):,} trials, {len(targets)} functions; "
        f"`--begin {options.begin + tried}` goes on"
    )
    for error in kinds:
        row = "  ".join(f"{o} {count[error, o]}" for o in ("survived", "lost", "not met"))
        print(f"{error:<20}{row}")
    return int(any(outcome == "lost" for _, outcome in count))


if __name__ == "__main__":
    sys.exit(main())
