"""One list of remedies, whose first one lets the program run on."""

import json
import re

import pytest

import nbmem
from nbmem.frontends.sidebar.report_summary import summary
from nbmem.views.exports.report import report_json
from nbmem.views.html import render_html
from nbmem.views.markup import with_code
from nbmem.views.oom import without_ooms
from nbmem.views.text import render_text
from tests.fake_cudnn import FakeCudnn
from tests.oom import programs

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]
MIB, GIB = 1 << 20, 1 << 30
EVALUATION = """
import torch
net = torch.nn.Linear(1024, 1000).cuda()
def evaluate():
    preds = []
    with torch.no_grad():
        for _ in range(400):
            preds.append(net(torch.zeros(32768, 1024, device="cuda")){kept})
evaluate()
"""
TRAINING = """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(20))).cuda()
opt = torch.optim.{optimizer}(net.parameters(){more})
for _ in range({steps}):
    loss = net(torch.zeros({rows}, 4096, device="cuda")).sum()
    loss.backward(); opt.step(){zero}
"""


def run(code, *, conf=None, fails=True):
    """Run a program on a new card; return its trace."""
    return programs.run(code, conf=conf, fails=fails)[0]


def test_what_grows_is_answered_by_what_lets_the_program_run_on_alone():
    report = run(EVALUATION.format(kept="")).report()
    (first,) = report.ooms[0].remedies
    each, ended_at = 32768 * 1000 * 4, report.ooms[0].at.step
    assert first.rule == "grows_each_step"
    assert first.title.startswith("`preds` grows by 126.0 MiB a call and holds ")
    assert first.high == ended_at * -(-each // (2 * MIB)) * 2 * MIB
    later = run(EVALUATION.format(kept=""), conf="expandable_segments:True").report()
    assert later.ooms[0].at.step > ended_at, "it would have bought some steps, and no more"
    run(EVALUATION.format(kept=".cpu()"), fails=False)


DECODE = """
import torch
from torch import nn
decode = nn.Sequential(nn.Linear(64, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU()).cuda()
batch_size = 500_000
{change}
with torch.no_grad():
    out = decode(torch.zeros(batch_size, 64, device="cuda"))
"""
LONGER = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(64, 2048), nn.GELU(), nn.Linear(2048, 1024)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for length in (40, 60, 50, 900, 55):
    batch_size = 900
    {change}
    scores = net(torch.zeros(batch_size, length, 64, device="cuda"))
    scores.log_softmax(-1).mean().backward()
    opt.step()
    opt.zero_grad()
"""


@pytest.mark.parametrize("code", [DECODE, LONGER], ids=["a first forward", "a longer batch"])
def test_the_batch_that_is_proposed_runs(code):
    first = run(code.format(change="pass")).report().ooms[0].remedies[0]
    assert first.rule == "batch_size"
    run(code.format(change=first.code), fails=False)


def test_gradients_that_are_freed_come_back_in_the_backward():
    program = {"optimizer": "SGD", "more": ", lr=0.1", "rows": 37_000, "steps": 3}
    trace = run(TRAINING.format(zero="", **program))
    report = trace.report()
    assert (report.ooms[0].at.phase, report.ooms[0].at.step) == ("forward", 1)
    first = report.ooms[0].remedies[0]
    assert first.rule == "gradients_kept"
    assert first.evidence.endswith("the program runs on.")
    run(TRAINING.format(zero=f"; {first.code}", **program), fails=False)


@pytest.mark.parametrize(
    ("optimizer", "rows", "phase"), [("SGD", 60_000, "forward"), ("AdamW", 38_500, "backward")]
)
def test_a_batch_that_is_offered_in_the_first_step_fits_two(optimizer, rows, phase):
    program = {"optimizer": optimizer, "more": ", lr=0.1", "zero": "; opt.zero_grad()"}
    report = run(TRAINING.format(rows=rows, steps=1, **program)).report()
    assert report.ooms[0].at.phase == phase
    mine = next(one for one in report.ooms[0].remedies if one.rule == "batch_size")
    smaller = int(re.findall(r"about (\d+) \(lower bound\)", mine.title)[0])
    assert smaller > rows // 4
    run(TRAINING.format(rows=smaller, steps=3, **program), fails=False)


def test_a_batch_that_an_evaluation_has_left_is_not_that_of_the_step():
    """The failing call's inputs are named when it ends, so it reports its own rows."""
    program = {"optimizer": "SGD", "more": ", lr=0.1", "zero": "; opt.zero_grad()", "steps": 3}
    old = 'old = torch.zeros(70_000, 4096, device="cuda")\nwith torch.no_grad():\n    net[0](old)\n'
    code = TRAINING.replace("opt =", f"{old}opt =")
    report = run(code.format(rows=60_000, **program)).report()
    mine = next(one for one in report.ooms[0].remedies if one.rule == "batch_size")
    (smaller,) = re.findall(r"about (\d+) \(lower bound\), not 60000", mine.title)
    assert int(smaller) > 60_000 // 4
    run(code.format(rows=smaller, **program), fails=False)


def test_every_view_has_one_list(tmp_path):
    report = run(EVALUATION.format(kept="")).report()
    remedies = report.ooms[0].remedies
    assert report.findings[: len(remedies)] == remedies
    rules = [finding.rule for finding in report.findings]
    assert len(rules) == len({*rules})
    written = json.loads(json.dumps(report_json(report)))
    assert written["out_of_memory"][0]["remedies"] == written["findings"][: len(remedies)]
    shown = summary(report, None, 0.0)
    assert shown.findings == report.findings
    head = f"Ran out of memory: 125.0 MiB asked for, {report.ooms[0].free / MIB:.1f} MiB free, "
    assert shown.error.startswith(head)
    text, html = render_text(report), render_html(report)
    assert text.startswith(head.rstrip(", "))
    assert head in html
    for one in remedies:
        assert text.replace("\n     ", " ").count(one.title) == 1
        assert html.count("".join(with_code(one.title))) == 1
    assert not {one.title for one in without_ooms(report).findings} & {r.title for r in remedies}


def test_a_kernel_that_found_no_room_is_not_what_is_explained(card):
    import torch

    card.dnn = FakeCudnn(90 * GIB, 80 * GIB, 0)
    model = torch.nn.Conv2d(16, 16, 3, device="cuda")
    batch = torch.zeros(4, 16, 64, 64, device="cuda")

    def ask():
        model(batch)
        torch.empty(15 * GIB, dtype=torch.uint8, device="cuda")

    with pytest.raises(torch.OutOfMemoryError), (trace := nbmem.trace("run")):
        ask()
    report = trace.report()
    assert report.ooms[0].asked == 15 * GIB
    assert not [one for one in report.findings if "90.0" in one.title + one.evidence]


def test_an_error_that_the_program_handles_changes_nothing():
    import torch

    with (trace := nbmem.trace("run")):
        try:
            torch.empty(90 * GIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    report = trace.report()
    assert report.ooms[0].caught
    assert not [one for one in report.findings if one.rule == "batch_size"]
    assert summary(report, None, 0.0).error is None
    del kept


def test_while_weights_are_loaded_no_loop_is_seen():
    code = """
import torch
net = [torch.nn.Linear(8192, 8192, device="meta") for _ in range(70)]
for layer in net:
    layer.to_empty(device="cuda")
"""
    report = run(code).report()
    for one in report.ooms[0].remedies:
        assert one.title.endswith("for this request only")


STEP = """
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(51))).cuda()
optimizer = torch.optim.Adam(net.parameters())
{cure}
for _ in range(3):
    net(torch.zeros(64, 4096, device="cuda")).sum().backward()
    optimizer.step(); optimizer.zero_grad()
"""


def test_a_step_that_fails_for_its_temporaries_is_to_be_fused():
    (first, *_) = run(STEP.format(cure="")).report().ooms[0].remedies
    assert first.title == "`fused=True` in Adam: its step has no temporaries"
    run(STEP.format(cure=first.code), fails=False)
