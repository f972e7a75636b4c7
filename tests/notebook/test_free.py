"""`%nbmem free` in a real shell, measured to the byte."""

import gc
import sys

import pytest
import torch

from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.capture.heap import walk
from nbmem.core.session.holders import HolderKind
from nbmem.core.units import MIB
from nbmem.frontends.notebook.extension import _LOADED
from tests.ipython_shell import shell_on_virtual_card


@pytest.fixture
def shell(monkeypatch):
    with shell_on_virtual_card(monkeypatch) as shell:
        yield shell


@pytest.fixture
def free(shell, capsys):
    """Run a cell, then `%nbmem free`; return its record and output."""

    def do(argument):
        capsys.readouterr()
        shell.run_cell(f"%nbmem free {argument}", store_history=True)
        output = capsys.readouterr()
        record = _LOADED[shell].tracer.freed
        return (record[-1] if record else None), output.out + output.err

    return do


def run(shell, code):
    return shell.run_cell(code, store_history=True)


def allocated():
    return torch.cuda.memory_allocated()


def test_a_variable_to_the_byte(shell, free):
    run(shell, "x = torch.zeros(3 << 18, device='cuda'); y = torch.zeros(100, device='cuda')")
    freed, output = free("x")
    assert freed.predicted == freed.measured == 3 * MIB
    assert allocated() == 512
    assert "x" not in shell.user_ns
    assert "x: 3.0 MiB freed. It is in torch's cache now" in output
    assert " ".join(output.split()).endswith(
        "before after change allocated 3.0 MiB 512 B -3.0 MiB reserved 22.0 MiB 22.0 MiB 0 B "
        "process 632.0 MiB 632.0 MiB 0 B"
    )


def test_what_shares_its_storage_is_named_as_the_reason(shell, free):
    run(shell, "x = torch.zeros(1 << 18, device='cuda'); kept = {'view': x[5:]}")
    freed, output = free("x")
    assert freed.predicted == freed.measured == 0
    assert "nothing was freed, because kept holds 1.0 MiB (kept['view'])." in output


def test_a_checkpoint_by_path(shell, free):
    run(
        shell,
        "checkpoint = {'model': {'w': torch.zeros(1 << 18, device='cuda')}, 'step': 7,"
        " 'optimizer': [torch.zeros(1 << 19, device='cuda')]}",
    )
    freed, output = free("checkpoint['model']")
    assert freed.predicted == freed.measured == MIB
    assert list(shell.user_ns["checkpoint"]) == ["step", "optimizer"]
    freed, output = free("checkpoint['optimizer'][0]")
    assert freed.predicted == freed.measured == 2 * MIB
    assert shell.user_ns["checkpoint"]["optimizer"] == [None]
    assert "is None now, so that the other entries keep their places." in output


def test_losses_go_with_their_graphs(shell, free):
    if reason := why_unreadable():
        pytest.skip(reason)
    run(
        shell,
        "w = torch.zeros(256, 256, device='cuda', requires_grad=True); losses = []\n"
        "for _i in range(3): losses.append(torch.relu(w @ w).sum())",
    )
    del shell.user_ns["_i"]
    freed, _ = free("losses")
    assert freed.predicted == freed.measured > 3 * 256 * 256 * 4


def test_several_names_and_an_attribute(shell, free):
    run(
        shell,
        "class T: pass\nt = T(); t.cache = torch.zeros(1 << 18, device='cuda')\n"
        "a = torch.zeros(1 << 18, device='cuda'); b = torch.zeros(1 << 18, device='cuda')",
    )
    _, output = free("t.cache, a b")
    assert output.count("1.0 MiB freed") == 3
    assert allocated() == 0
    assert vars(shell.user_ns["t"]) == {}


def test_results(shell, free):
    for _ in range(4):
        run(shell, "torch.zeros(1 << 18, device='cuda')")
    assert allocated() == 4 * MIB
    freed, _ = free("out")
    assert freed.predicted == freed.measured == 4 * MIB
    assert shell.user_ns["Out"] == {}
    assert shell.user_ns["_"] == ""
    run(shell, "1 + 1")
    assert shell.user_ns["_"] == 2


FAILING = """
def train():
    batch = [torch.zeros(1 << 18, device='cuda')]
    def inner(x):
        activations = x[0] + 1
        raise ValueError("no")
    try:
        inner(batch)
    except ValueError as err:
        raise RuntimeError("worse") from err
train()
"""


@pytest.mark.parametrize("later", ["", "1 + 1"])
def test_a_traceback(shell, free, later):
    run(shell, FAILING)
    if later:
        run(shell, later)
    assert allocated() == 2 * MIB
    freed, output = free("traceback")
    assert freed.predicted == freed.measured == 2 * MIB, output
    assert allocated() == 0
    assert free("traceback")[0].measured == 0


FAILS_AGAIN = """
def train():
    model = torch.zeros(1 << 18, device="cuda")
    failed = None
    try:
        raise ValueError("no")
    except ValueError as err:
        failed = err
    raise failed
train()
"""


@pytest.fixture
def without_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_failed_runs_before_are_named_and_collected(shell, free, without_collections):
    for _ in range(3):
        run(shell, FAILS_AGAIN)
    assert allocated() == 3 * MIB
    (found,) = walk(shell.user_ns).by_device.values()
    roots = sorted(way.root for held in found for way in held.holders)
    assert [root.partition("[")[0] for root in roots] == [
        "the traceback of In ",
        "the traceback of the failed run before, In ",
        "the traceback of the failed run before, In ",
    ]
    freed, output = free("traceback")
    assert freed.predicted == freed.measured == 3 * MIB, output
    assert allocated() == 0


def test_an_exception_that_the_notebook_keeps_is_no_run_before(shell, free, without_collections):
    run(shell, "kept = []")
    for _ in range(2):
        run(
            shell,
            FAILS_AGAIN.replace("\ntrain()", "\ntry: train()\nexcept ValueError as e: kept += [e]"),
        )
    (found,) = walk(shell.user_ns).by_device.values()
    assert {way.root for held in found for way in held.holders} == {"kept"}
    freed, _ = free("traceback")
    assert freed.predicted == freed.measured == 0


def test_the_tip_on_a_failed_run_before(shell, capsys, without_collections):
    for _ in range(2):
        run(shell, FAILS_AGAIN)
    run(shell, "%%memtrace\nx = torch.zeros(1 << 18, device='cuda')")
    output = " ".join(capsys.readouterr().out.split())
    assert "1.0 MiB belong to the failed run before: `import gc; gc.collect()`" in output
    assert "`%nbmem free traceback` gives back 1.0 MiB of the cell that failed" in output


def test_a_traceback_after_a_debugger_has_asked_for_the_locals(shell, free):
    run(shell, FAILING)
    frame = sys.last_value.__traceback__
    while frame.tb_next:
        frame = frame.tb_next
    assert "batch" in frame.tb_frame.f_locals
    del frame
    assert free("traceback")[0].measured == 2 * MIB


def test_an_out_of_memory_error_leaves_nothing(shell, free):
    run(
        shell,
        "def grow():\n    kept = []\n"
        "    while True: kept.append(torch.zeros(8 << 30, device='cuda'))",
    )
    result = run(shell, "grow()")
    assert type(result.error_in_exec).__name__ == "OutOfMemoryError"
    del result
    held = allocated()
    assert held >= 32 << 30
    freed, _ = free("traceback")
    assert freed.measured == freed.predicted == held
    assert allocated() == 0


def test_the_cache(shell, free):
    run(shell, "x = torch.zeros(1 << 25, device='cuda'); y = torch.zeros(10, device='cuda'); del x")
    freed, _ = free("cache")
    assert freed.measure == "reserved"
    assert freed.predicted == freed.measured == 128 * MIB
    freed, output = free("cache")
    assert freed.measured == 0
    assert "nothing was freed, because torch has no whole segment cached" in output
    assert "stay cached: free pieces of segments in which tensors live." in output


def test_a_cycle_is_named(shell, free):
    run(
        shell,
        "import gc; gc.disable()\nclass Node: pass\nn = Node(); n.me = n;"
        " n.x = torch.zeros(1 << 18, device='cuda')",
    )
    freed, output = free("n")
    run(shell, "gc.enable()")
    assert [root.kind for root in freed.left] == [HolderKind.CYCLE]
    assert "1.0 MiB are in a reference cycle (`import gc; gc.collect()` frees them)" in output


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("", "Name what to free"),
        ("chekpoint", "Did you mean `checkpoint`?"),
        ("torch", "is an imported module"),
        ("In", "belongs to IPython"),
        ("_", "keeps each result under several names"),
        ("Out[1]", "keeps each result under several names"),
        ("f()", "is not a name that can be freed"),
        ("checkpoint[f()]", "is not a name that can be freed"),
        ("checkpoint['gone']", "leads nowhere: dict holds no entry 'gone'"),
        ("checkpoint['pair'][0]", "a tuple cannot lose a part safely"),
        ("model.weight", "a Linear cannot lose a part safely"),
        ("t.loud", "Properties are not followed"),
        ("checkpoint checkpoint['pair']", "one holds the other"),
        ("checkpoint['pair", "a bracket or a quote too many"),
    ],
)
def test_what_is_refused_frees_nothing(shell, free, argument, sentence):
    run(
        shell,
        "def f(): raise AssertionError\n"
        "class T:\n    @property\n    def loud(self): raise AssertionError\n"
        "t = T(); model = torch.nn.Linear(2, 2).cuda()\n"
        "checkpoint = {'pair': (torch.zeros(9, device='cuda'), 1)}",
    )
    before = allocated()
    freed, output = free(argument)
    assert freed is None
    assert sentence in output
    assert allocated() == before
