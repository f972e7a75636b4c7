"""Code of tips uses the user's names, runs, and saves as promised."""

import re
import sys
import types

import pytest

from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.report.analysis.program_names import blocks_of, code_name, is_expression, items_of
from tests.tips.programs import FREEING, MODEL, REWRITING

torch = pytest.importorskip("torch", reason="the programs are torch programs")

RENAMED = {"model": "lm", "optimizer": "adamw", "losses": "curve", "loss": "nll", "output": "yhat"}
_WORD = re.compile(r"(?<![\w.'\"])(" + "|".join(RENAMED) + r")(?![\w'\"])")


def renamed(code):
    """Rename a program's variables."""
    return _WORD.sub(lambda match: RENAMED[match[1]], code)


def paste_tip(run, program, **options):
    """Return the finding, the program's names and bytes before pasting."""
    code = renamed(program.code).replace("{old}", renamed(getattr(program, "old", "")))
    trace, names = run(code, before=program.before, **options)
    mine = [f for f in trace.all_tips() if f.rule == program.rule]
    assert mine, code
    before = torch.cuda.memory_allocated()
    for finding in mine:
        assert finding.code is not None
        exec(compile(finding.code, "pasted.py", "exec"), names)
    return mine[0], names, before


@pytest.mark.parametrize("program", FREEING, ids=lambda p: f"{p.rule}-{p.name or 'unnamed'}")
def test_what_frees_is_pasted_and_frees_it(run, program):
    if program.rule == "graph_kept" and (reason := why_unreadable()):
        pytest.skip(reason)
    finding, _, before = paste_tip(run, program)
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high


@pytest.mark.parametrize("program", REWRITING, ids=lambda p: p.rule)
def test_what_is_pasted_runs_among_the_users_names(run, program, monkeypatch):
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(variable, "")  # so that it is put back, whatever is pasted
        monkeypatch.delenv(variable)
    package = types.ModuleType("bitsandbytes")
    package.optim = types.SimpleNamespace(AdamW8bit=torch.optim.AdamW)
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    finding, names, _ = paste_tip(run, program, card=program.card, stacks=program.stacks)
    assert not re.search(r"\b(model|optimizer|loss)\b", finding.code), finding.code
    assert "lm" in names or program.rule == "fragmentation"


CONTAINERS = {
    "a list": "kept = []\ndef keep(x): kept.append(x)",
    "a deque": "import collections\nkept = collections.deque()\ndef keep(x): kept.append(x)",
    "a dictionary by number": "kept = {}\ndef keep(x): kept[len(kept)] = x",
    "a list on a class": "class Meter:\n    kept = []\ndef keep(x): Meter.kept.append(x)",
    "a list on the model": "def keep(x): lm.kept = getattr(lm, 'kept', []) + [x]",
    "a default argument": "def keep(x, kept=[]): kept.append(x)",
    "a tensor that is joined": "kept = torch.empty(0, device='cuda')\n"
    "def keep(x):\n    global kept\n    kept = torch.cat([kept, x])",
    "a queue": "import queue\nkept = queue.Queue()\ndef keep(x): kept.put(x)",
}
GROWS = """
lm = net()
adamw = torch.optim.SGD(lm.parameters())
for _ in range(6):
    x = batch(1024)
    lm(x).sum().backward()
    adamw.step()
    adamw.zero_grad()
    keep(x)
    if _ % 2:
        with torch.no_grad():
            y = lm(batch(512)).mean().item()
del x
"""


@pytest.mark.parametrize("what", CONTAINERS)
def test_whatever_keeps_what_grows_is_named_and_taken_off_the_card(run, what):
    trace, names = run(GROWS, before=MODEL + CONTAINERS[what])
    (finding,) = trace.report().findings
    assert finding.rule == "grows_each_step"
    assert "grows by 4.0 MiB with every step and holds 24.0 MiB" in finding.title
    before = torch.cuda.memory_allocated()
    exec(compile(finding.code, "pasted.py", "exec"), names)
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high == 24 << 20


def test_what_is_appended_has_the_name_that_the_loop_has_for_it(run):
    if reason := why_unreadable():
        pytest.skip(reason)
    loop = "lm, curve = net(), []\nfor _ in range(4):\n    nll = lm(batch()).square().mean()\n"
    trace, _ = run(loop + "    curve.append(nll)", before=MODEL)
    (finding,) = trace.report().findings  # and none for the inputs that the graphs keep
    assert finding.title.endswith("keep nll.detach() instead")
    assert "# and append only nll.detach()" in finding.code


TAKES = "lm = net()\nlm(batch({rows})).sum().backward()"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ("size_of_batch = 64", "size_of_batch"),
        ("class cfg: train_batch, test_batch = 64, 64", "cfg.train_batch"),
        ("cfg = {'batch_size': 64}", "cfg['batch_size']"),
        ("batch_size, minibatch = 64, 64", None),
        ("batch_size = 63", None),
    ],
)
def test_the_batch_has_the_programs_own_name_where_it_is_known(run, settings, name):
    trace, names = run(TAKES.format(rows=64), before=f"{MODEL}\n{settings}")
    code = next(f.code for f in trace.all_tips() if f.rule == "card_empty")
    line, _, doubt = code.partition("   # ")
    if name is None:
        assert line.startswith("batch_size = ")
        assert doubt == "by whatever name your program has for it"
    else:
        assert (line.partition(" = ")[0], doubt) == (name, "")
        exec(line, names)
        assert eval(name, names) > 64


FAILS = """
import gc
lm = net(1024, 6).cuda()
def check(x):
    y = lm(x)
    raise ValueError("a shape is wrong")
try:
    check(batch(2048))
except ValueError as e:
    {keep}
"""


@pytest.mark.parametrize("keep", ["problem = e", "failed = [e]"])
def test_an_exception_that_a_name_keeps_is_found_with_what_its_frames_hold(run, keep):
    if reason := why_unreadable():
        pytest.skip(reason)
    trace, names = run(FAILS.format(keep=keep), before=MODEL)
    finding = trace.report().findings[0]
    assert finding.rule == "traceback_kept"
    before = torch.cuda.memory_allocated()
    exec(compile(finding.code, "pasted.py", "exec"), names)
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high


def test_exceptions_inside_objects_are_found_where_they_lie(run):
    if reason := why_unreadable():
        pytest.skip(reason)
    before = MODEL + "\nclass Service: pass\nservice, log = Service(), [0]\nservice.failed = {}"
    keep = "service.failed['a'] = e; log.append(e)"
    trace, names = run(FAILS.format(keep=keep), before=before)
    (finding,) = (one for one in trace.report().findings if one.rule == "traceback_kept")
    assert finding.title.startswith("Exceptions in `log[1]` and `service.failed['a']` keep ")
    assert finding.code is None, "what has them is needed"
    before = torch.cuda.memory_allocated()
    names["log"][1].__traceback__ = None
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high


def test_an_old_optimizer_is_found_with_its_state(run):
    trace, names = run(
        "lm = net()\nold = torch.optim.Adam(lm.parameters())\nlm(batch()).sum().backward()\n"
        "old.step()\nold.zero_grad()\nlm = net()\nadamw = torch.optim.Adam(lm.parameters())\n"
        "for _ in range(2):\n    lm(batch()).sum().backward()\n    adamw.step()\n"
        "    adamw.zero_grad()",
        before=MODEL,
    )
    (finding,) = trace.report().findings
    assert (finding.rule, finding.code) == ("two_models", "del old")
    before = torch.cuda.memory_allocated()
    exec(finding.code, names)
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high


def test_what_is_no_code_is_not_pasted():
    named = {"name": "nets['a'].body", "class": "Net"}
    assert code_name(named) == "nets['a'].body"
    assert code_name({"name": "Net", "class": "Net"}) is None
    assert not is_expression("local x of train()")
    assert blocks_of(named, "layers.blocks") == "nets['a'].body.layers.blocks"
    assert blocks_of(named, "0.1") == "nets['a'].body.get_submodule(\"0.1\")"
    assert items_of("kept", ["kept[1]", "kept[0]"]) == 2
    assert items_of("kept", ["kept[7]", "kept[0]"]) is None
    assert items_of("kept", ["kept[0]['x']"]) is None
