"""`%nbmem tips`, `explain` and `mute` in a real shell on a virtual card."""

import pytest

torch = pytest.importorskip("torch", reason="there is no memory to speak of without torch")

from nbmem.frontends.notebook.extension import _LOADED
from tests.faults.injector import Fault, Target, functions
from tests.ipython_shell import shell_on_virtual_card


@pytest.fixture
def shell(monkeypatch):
    with shell_on_virtual_card(monkeypatch) as shell:
        yield shell


@pytest.fixture
def say(shell, capsys):
    """Run a cell; returns what it printed."""

    def do(code):
        capsys.readouterr()
        shell.run_cell(code, store_history=True)
        said = capsys.readouterr()
        return said.out + said.err

    return do


def findings(shell):
    return _LOADED[shell].tracer.last.report().findings


def test_out_is_found_freed_and_recorded(shell, say):
    say("torch.zeros(8 << 20, device='cuda')")
    said = say("%%memtrace\nx = torch.zeros(1 << 20, device='cuda')")
    (finding,) = findings(shell)
    assert finding.rule == "out_history"
    assert "IPython's `Out` keeps 32.0 MiB" in said
    before = torch.cuda.memory_allocated()
    say("%nbmem free out")
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high
    record = say("%nbmem tips --record")
    assert "1 of 1 predictions were exact" in record
    assert "it freed 32.0 MiB" in say("%nbmem tips")


FAILS = """
def train():
    activations = torch.zeros(8 << 20, device="cuda")
    raise ValueError("a shape is wrong")
train()
"""


def test_the_traceback_of_a_failed_cell_is_found_and_freed(shell, say):
    say(FAILS)
    said = say("%%memtrace\nx = torch.zeros(1 << 20, device='cuda')")
    (finding,) = findings(shell)
    assert finding.rule == "traceback_kept"
    assert "gives back 32.0 MiB of the cell that failed" in said
    assert "activations" in finding.evidence
    before = torch.cuda.memory_allocated()
    say("%nbmem free traceback")
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high


def test_a_muted_tip_is_not_shown_until_it_is_heard_again(say):
    cell = "%%memtrace\nx = torch.zeros(1 << 20, device='cuda')"
    say("torch.zeros(8 << 20, device='cuda')")
    assert "muted until the kernel ends" in say("%nbmem mute out_history --session")
    assert "Tips" not in say(cell)
    assert "Muted: out_history." in say("%nbmem tips")
    assert "Muted" not in say("%nbmem tips --all"), "it is there"
    assert "You have muted it" in say("%nbmem explain out_history")
    say("%nbmem unmute out_history")
    assert "Tips" in say("%nbmem report")
    assert "(muted)" not in say("%nbmem explain")


def test_explain_says_the_page_and_helps_with_a_wrong_name(say):
    page = say("%nbmem explain checkpoint_kept")
    for heading in ("What it sees", "What it costs", "Do instead", "When to ignore it"):
        assert heading in page
    assert "Did you mean `checkpoint_kept`?" in say("%nbmem explain checkpoint_keep")


def test_without_a_report_or_with_a_wrong_option_a_sentence_says_so(say):
    assert "There is no report yet" in say("%nbmem tips")
    assert "does not know --most" in say("%nbmem tips --most")
    assert "Nothing has been freed through nbmem yet" in say("%nbmem tips --record")
    assert "needs one tip" in say("%nbmem mute")


def test_a_report_without_tips_is_a_sentence(say):
    say("%%memtrace\nx = torch.zeros(1 << 20, device='cuda')")
    said = say("%nbmem tips")
    assert "No tips: nothing in this recording would bring memory back." in said
    assert "--all" not in said, "there would be none, either"


TRAINS = """
%%memtrace
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.randn(8192, 1024, device="cuda")).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""


def test_what_all_tips_would_say_is_not_denied(say):
    say(TRAINS.strip())
    said = say("%nbmem tips")
    assert "No tips for a card with room." in said
    assert "up to" in said
    assert "nothing in this recording" not in said
    assert "net.forward = torch.autocast" in say("%nbmem tips --all")


def test_a_rule_that_fails_leaves_a_note_among_all_tips(shell, say):
    say(TRAINS.strip())
    rule = next(
        f.function for f in functions("nbmem.report.tips.rules.offload") if f.name.endswith("check")
    )
    with Fault(Target("offload", rule), ZeroDivisionError):
        said = say("%nbmem tips --all")
    assert "The tip offload was left out: ZeroDivisionError" in said
    assert "autocast" in said


def test_a_view_that_fails_leaves_the_figures(say):
    say(TRAINS.strip())
    view = next(t for t in functions("nbmem.views.tips") if t.name.endswith(".render_tips"))
    with Fault(view, ZeroDivisionError):
        said = say("%nbmem tips --all")
    assert "B  autocast" in said
    assert "The tips were left out" in said or "The tips was left out" in said


def test_no_tips_stands_beside_an_explained_error(shell, say):
    say("%%memtrace\nx = torch.zeros(1 << 40, device='cuda')")
    said = say("%nbmem tips")
    if _LOADED[shell].tracer.last.report().ooms[0].remedies:
        assert "nothing in this recording" not in said
