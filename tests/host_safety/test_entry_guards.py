"""Every call into nbmem from outside has an entry point's guard."""

import contextlib
import io

import pytest
import torch

from nbmem import virtual
from tests.faults import capture
from tests.host_safety import threads
from tests.host_safety.unguarded_calls import Finder

BY_NAME = "a person calls it by name, and wants to know what went wrong"
ONLY_LOOKS_UP = "it looks up what is torch's own and calls what is guarded: nothing in it can fail"
A_THREAD = "its thread is nbmem's own, and its body keeps its faults"
ALLOWED = {
    "nbmem.__getattr__": BY_NAME,
    "nbmem.api.tracing.": BY_NAME,
    "nbmem.frontends.notebook.extension.load_ipython_extension": BY_NAME,
    "nbmem.frontends.notebook.extension.unload_ipython_extension": BY_NAME,
    "nbmem.frontends.notebook.magics._memtrace.<locals>.memtrace": BY_NAME,
    "nbmem.frontends.notebook.magics._nbmem.<locals>.nbmem": BY_NAME,
    "nbmem.capture.heap.heap_walk.walk": "the tests call it by name",
    "nbmem.capture.record.recorder.Recorder.so_far": "the tests call it by name",
    "nbmem.capture.hooks.data_writes.DataPatch.": ONLY_LOOKS_UP,
    "nbmem.capture.patches.method_patches.AttributePatch.": ONLY_LOOKS_UP,
    "nbmem.capture.patches.method_patches.MethodPatch.": ONLY_LOOKS_UP,
    "nbmem.capture.patches.name_patches.FunctionPatch.apply.<locals>.wrapper": ONLY_LOOKS_UP,
    "nbmem.capture.torch_memory.peak_counters.PeakView._reader.<locals>.read_statistics": (
        "it calls torch's own, and adds what cannot fail: a test injects faults into the rest"
    ),
    "nbmem.capture.torch_memory.peak_counters.PeakView._resetter.<locals>.reset_peaks": (
        "it calls torch's own between functions that are guarded"
    ),
    "nbmem.capture.patches.method_patches.report_end": "a guard itself: it has its own try",
    "nbmem.core.runtime.garbage_collector._reports": "a guard itself: it has its own try",
    "nbmem.core.runtime.interrupts.HeldSignals.take": "called for Ctrl-C: an assignment",
    "nbmem.capture.record.card_sampler.Sampler._run": A_THREAD,
    "nbmem.frontends.sidebar.hub.Hub._run": A_THREAD,
    "nbmem.capture.timeouts.call_with_timeout.<locals>.run": A_THREAD,
}
CELLS = (
    f"%%memtrace\n{capture.TRAIN}",
    f"%%memtrace big --stacks --no-widget\n{capture.TRAIN}",
    f"%%memtrace\n{capture.FAIL}",
    "%%memtrace --max-peak 1MiB\nx = torch.ones(1 << 20, device='cuda')",
    "%%memtrace\nimport asyncio\nawait asyncio.sleep(0)",
    "%%memtrace\nget_ipython().run_cell('1 + 1')",
    (
        "%%memtrace\ntorch.cuda.memory._record_memory_history()\n"
        "torch.cuda.memory._record_memory_history(None)"
    ),
    "%%memtrace --nonsense\n1",
    "%%memtrace\n1 +",
    "x = %memtrace torch.ones(4, device='cuda')",
    (
        "import nbmem\nwith nbmem.trace('mine') as t, nbmem.phase('part'):\n"
        "    kept = torch.ones(1, device='cuda')\nt"
    ),
    "print(t); t.report(); t.all_tips()",
    *(
        f"%nbmem {command}"
        for command in (
            *("", "report", "history", "top", "tips", "free", "free cache", "free kept", "gpu"),
            *("off", "on", "nonsense", "diff", "mute checkpoint_kept", "unmute checkpoint_kept"),
        )
    ),
)
LINES = ("%nbmem re", "%nbmem free k", "%%memtrace --g", "%nbmem explain ")


def notebook():
    """A notebook that uses most of nbmem, loads it twice and lets go of it."""
    with virtual.activated("T4"), capture._shell() as shell:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            capture._run(shell, capture.PREPARE)
            shell.run_line_magic("load_ext", "nbmem")
            for code in CELLS:
                capture._run(shell, code)
            for line in LINES:
                shell.complete(line)
            shell.run_line_magic("reload_ext", "nbmem")
            shell.run_line_magic("unload_ext", "nbmem")
        return output.getvalue()


def threads_that_train():
    with virtual.activated("T4"):
        torch.ones(1, device="cuda")
        for name, scene in threads.SCENES.items():
            if name != "asked":
                scene(threads.Stage("cuda", 2, 2, 1, {}, traced=True, traces=[]))


@pytest.mark.parametrize("scenario", [notebook, threads_that_train])
def test_nothing_is_called_from_outside_without_a_guard(scenario):
    capture.notebook(loaded=False)  # what torch makes once
    finder = Finder()
    with finder.on():
        scenario()
    assert (
        "nbmem.capture.patches.method_patches.MethodPatch.__get__" in finder.found
    )  # or it finds nothing
    new = {
        name: caller
        for name, caller in finder.found.items()
        if not any(name == one or (one[-1] == "." and name.startswith(one)) for one in ALLOWED)
    }
    assert new == {}, (
        "mark them with nbmem.core.runtime.entry_points.entry, or say in ALLOWED why not"
    )


def test_a_call_past_the_guard_is_found():
    finder = Finder()
    module = {"__name__": "nbmem.made"}
    code = "def unguarded(): pass"
    exec(compile(code, f"{threads.nbmem.__path__[0]}/made.py", "exec"), module)
    with finder.on():
        module["unguarded"]()
    assert set(finder.found) == {"nbmem.made.unguarded"}
