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
def printed_by(shell, capsys):
    """Provide printed_by(cell), which runs a cell and returns what it printed."""

    def run_cell(code):
        capsys.readouterr()
        shell.run_cell(code, store_history=True)
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run_cell


def findings(shell):
    return _LOADED[shell].tracer.last.report().findings


def test_out_is_found_freed_and_recorded(shell, printed_by):
    printed_by("torch.zeros(8 << 20, device='cuda')")
    output = printed_by("%%memtrace\nx = torch.zeros(1 << 20, device='cuda')")
    (finding,) = findings(shell)
    assert finding.rule == "out_history"
    assert "IPython's `Out` keeps 32.0 MiB" in output
    before = torch.cuda.memory_allocated()
    printed_by("%nbmem free out")
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high
    record = printed_by("%nbmem tips --record")
    assert "1 of 1 predictions were exact" in record
    assert "it freed 32.0 MiB" in printed_by("%nbmem tips")


FAILS = """
def train():
    activations = torch.zeros(8 << 20, device="cuda")
    raise ValueError("a shape is wrong")
train()
"""


def test_the_traceback_of_a_failed_cell_is_found_and_freed(shell, printed_by):
    printed_by(FAILS)
    output = printed_by("%%memtrace\nx = torch.zeros(1 << 20, device='cuda')")
    (finding,) = findings(shell)
    assert finding.rule == "traceback_kept"
    assert "gives back 32.0 MiB of the cell that failed" in output
    assert "activations" in finding.evidence
    before = torch.cuda.memory_allocated()
    printed_by("%nbmem free traceback")
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high


def test_a_muted_tip_is_not_shown_until_it_is_unmuted(printed_by):
    cell = "%%memtrace\nx = torch.zeros(1 << 20, device='cuda')"
    printed_by("torch.zeros(8 << 20, device='cuda')")
    assert "muted until the kernel ends" in printed_by("%nbmem mute out_history --session")
    assert "Tips" not in printed_by(cell)
    assert "Muted: out_history." in printed_by("%nbmem tips")
    assert "Muted" not in printed_by("%nbmem tips --all"), "it is there"
    assert "You have muted it" in printed_by("%nbmem explain out_history")
    printed_by("%nbmem unmute out_history")
    assert "Tips" in printed_by("%nbmem report")
    assert "(muted)" not in printed_by("%nbmem explain")


def test_explain_prints_the_page_and_helps_with_a_wrong_name(printed_by):
    page = printed_by("%nbmem explain checkpoint_kept")
    for heading in ("What it sees", "What it costs", "Do instead", "When to ignore it"):
        assert heading in page
    assert "Did you mean `checkpoint_kept`?" in printed_by("%nbmem explain checkpoint_keep")


def test_without_a_report_or_with_a_wrong_option_a_sentence_says_so(printed_by):
    assert "There is no report yet" in printed_by("%nbmem tips")
    assert "does not know --most" in printed_by("%nbmem tips --most")
    assert "Nothing has been freed through nbmem yet" in printed_by("%nbmem tips --record")
    assert "needs one tip" in printed_by("%nbmem mute")


def test_a_report_without_tips_is_a_sentence(printed_by):
    printed_by("%%memtrace\nx = torch.zeros(1 << 20, device='cuda')")
    output = printed_by("%nbmem tips")
    assert "No tips: nothing in this recording would bring memory back." in output
    assert "--all" not in output, "there would be none, either"


TRAINS = """
%%memtrace
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.randn(8192, 1024, device="cuda")).square().mean().backward()
    sgd.step()
    sgd.zero_grad()
"""


def test_what_all_tips_would_say_is_not_denied(printed_by):
    printed_by(TRAINS.strip())
    output = printed_by("%nbmem tips")
    assert "No tips for a card with room." in output
    assert "up to" in output
    assert "nothing in this recording" not in output
    assert "net.forward = torch.autocast" in printed_by("%nbmem tips --all")


def test_a_rule_that_fails_leaves_a_note_among_all_tips(shell, printed_by):
    printed_by(TRAINS.strip())
    rule = next(
        f.function for f in functions("nbmem.report.tips.rules.offload") if f.name.endswith("check")
    )
    with Fault(Target("offload", rule), ZeroDivisionError):
        output = printed_by("%nbmem tips --all")
    assert "The tip offload was left out: ZeroDivisionError" in output
    assert "autocast" in output


def test_a_view_that_fails_leaves_the_figures(printed_by):
    printed_by(TRAINS.strip())
    view = next(t for t in functions("nbmem.views.tips") if t.name.endswith(".render_tips"))
    with Fault(view, ZeroDivisionError):
        output = printed_by("%nbmem tips --all")
    assert "B  autocast" in output
    assert "The tips were left out" in output or "The tips was left out" in output


def test_no_tips_stands_beside_an_explained_error(shell, printed_by):
    printed_by("%%memtrace\nx = torch.zeros(1 << 40, device='cuda')")
    output = printed_by("%nbmem tips")
    if _LOADED[shell].tracer.last.report().ooms[0].remedies:
        assert "nothing in this recording" not in output
