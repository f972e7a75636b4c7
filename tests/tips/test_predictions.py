"""Every tip's promised bytes equal the measured ones."""

import re
from dataclasses import replace

import numpy as np
import pytest

import nbmem
from nbmem import virtual
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.capture.record.spilled_memory import with_spilled
from nbmem.core.session.categories import Category
from nbmem.core.units import MIB, parse_bytes
from nbmem.report.analysis import card_ledger_of, report_of
from nbmem.report.analysis.cache_releases import had_room, releases_for_requests
from nbmem.report.analysis.growth import find_growth, step_ends
from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.report.tips.engine import advise
from tests.tips.measure import measure_freed, measure_saved
from tests.tips.programs import FREEING, MODEL, REWRITING

torch = pytest.importorskip("torch", reason="the programs are torch programs")

from tests import fake_deepspeed as deepspeed


def findings_of(findings, rule):
    return [finding for finding in findings if finding.rule == rule]


@pytest.mark.parametrize("program", FREEING, ids=lambda p: f"{p.rule}-{p.name or 'unnamed'}")
def test_what_a_remedy_frees_is_what_was_said_to_the_byte(run, program):
    if program.rule == "graph_kept" and (reason := why_unreadable()):
        pytest.skip(reason)
    findings, measured = measure_freed(run, program)
    assert findings[0].rule == program.rule
    assert program.name in findings[0].title
    assert findings[0].ground == "exact"
    assert findings[0].low == findings[0].high == measured


@pytest.mark.parametrize("program", REWRITING, ids=lambda p: p.rule)
def test_the_peak_falls_by_what_was_said(run, program):
    findings, measured = measure_saved(run, program)
    mine = findings_of(findings, program.rule)
    assert mine, [f.title for f in findings]
    assert not program.first or findings[0].rule == program.rule
    slack = 0.02 * measured if any(f.ground == "simulated" for f in mine) else 0
    assert any(f.low - slack <= measured <= f.high + slack for f in mine), (measured, mine)


OPTIMIZERS = [
    "SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "Adam(model.parameters())",
    "AdamW(model.parameters(), amsgrad=True)",
    "AdamW(model.parameters(), fused=True)",
    "RMSprop(model.parameters(), momentum=0.9)",
    "Adafactor(model.parameters())",
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_first_step_adds_what_was_foreseen(run, optimizer):
    trace, names = run(
        f"model = net(1500, 3)\noptimizer = torch.optim.{optimizer}\n"
        "model(batch(64, 1500)).sum().backward()",
        before=MODEL,
    )
    mine = findings_of(trace.report().findings, "first_step")
    before = torch.cuda.memory_allocated()
    names["optimizer"].step()
    added = torch.cuda.memory_allocated() - before
    if "Adafactor" in optimizer:
        assert not mine, "next to nothing is not worth a tip"
    else:
        assert [f.low for f in mine] == pytest.approx([added], rel=0.0005)


def test_an_optimizer_without_state_is_not_foreseen(run):
    trace, _ = run(
        "model = net()\noptimizer = torch.optim.SGD(model.parameters())\n"
        "model(batch()).sum().backward()",
        before=MODEL,
    )
    assert not trace.report().findings


STEPS = {
    "zero_grad at the end": """
model = net(1024, 4)
optimizer = torch.optim.Adam(model.parameters())
for _ in range({steps}):
    model(batch(6000)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "zero_grad at the head, an evaluation and a tensor behind the loop": """
m = net(2048, 4)
opt = torch.optim.AdamW(m.parameters())
for _ in range({steps}):
    x = batch(4096, 2048)
    opt.zero_grad()
    out = m(x)
    loss = out.square().mean()
    loss.backward()
    opt.step()
m.eval()
with torch.no_grad():
    m(batch(2048, 2048))
kept = torch.zeros(20 << 20, device="cuda")
""",
    "zero_grad between forward and backward": """
m = net(2048, 4)
opt = torch.optim.AdamW(m.parameters())
for _ in range({steps}):
    loss = m(batch(4096, 2048)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
}


@pytest.mark.parametrize("loop", STEPS)
def test_the_second_iteration_peaks_where_it_was_foreseen(run, loop):
    one, _ = run(STEPS[loop].format(steps=1), before=MODEL)
    mine = findings_of(one.report().findings, "second_step_peak")
    two, _ = run(STEPS[loop].format(steps=2), before=MODEL)
    more = two.report().peak.allocated - one.report().peak.allocated
    assert [(f.low, f.high) for f in mine] == [(more, more)]
    assert not findings_of(two.report().findings, "second_step_peak")


def test_an_iteration_behind_a_warm_up_has_no_second_peak(run):
    loop = STEPS["zero_grad at the end"]
    again = loop[loop.index("for") :].format(steps=1)
    trace, _ = run(again, before=MODEL + loop.format(steps=5))
    assert not findings_of(trace.report().findings, "second_step_peak")


@pytest.mark.parametrize(("card", "bus"), [("T4", "3.0"), ("L4", "4.0"), ("H100 80GB", "5.0")])
def test_the_way_to_the_host_is_the_cards_own(run, card, bus):
    loop = "model = net(1024, 12)\nfor _ in range(2):\n    model(batch(8192)).sum().backward()"
    trace, names = run(loop, before=MODEL, card=card)
    (mine,) = findings_of(trace.all_tips(), "offload")
    assert f"PCIe {bus} with 16 lanes" in mine.evidence
    exec(mine.code, names)
    exec("model(batch(16)).sum().backward()", names)


def test_a_frozen_net_makes_no_graph_unless_its_input_wants_one(run):
    calls = "model = net().requires_grad_(False)\nmodel(batch())\nmodel(batch().requires_grad_())"
    trace, _ = run(calls, before=MODEL)
    assert [(c["grad"], c["count"]) for c in trace.session.facts["calls"]] == [
        (False, 1),
        (True, 1),
    ]


IDLE = """
few = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(100)]
del few
large = torch.empty(900 << 20, dtype=torch.uint8, device="cuda")
"""


def test_empty_cache_gives_back_what_was_said(run):
    trace, _ = run(IDLE, before="import torch", card="RTX 3070")
    (finding,) = trace.report().findings
    assert finding.rule == "cached_memory"
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() == finding.low == finding.high == 3000 << 20


GRAPH = """
model, x = net(1024, 8), batch(65536)
for _ in range(2):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
{end}
"""


@pytest.mark.parametrize("end", ["del graph, y", "del graph", "del y"])
def test_a_pool_whose_graph_is_gone_is_told_to_the_byte(run, end):
    trace, _ = run(GRAPH.format(end=end), before=MODEL, card="RTX 3070")
    told = findings_of(trace.report().findings, "dead_graph_pool")
    (asked,) = findings_of(trace.all_tips(), "dead_graph_pool")
    before = _in_private_pools()
    torch.cuda.empty_cache()
    assert asked.low == asked.high == before - _in_private_pools()
    # While the second graph lives, the first one's pool is too little to be missed on this card.
    assert told == ([asked] if "graph" in end else [])


def _in_private_pools():
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))


LENGTHS = """
model = net(1024, 8)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for rows in (2000, 3100, 4700, 6100, 7900, 9300, 11100, 12700):
    model(batch(rows)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_where_the_driver_refused_no_figure_is_more_than_there_was(run):
    full = {"card": "T4", "other_processes": 13 << 30}
    trace, _ = run(LENGTHS, before=MODEL, **full)
    (mine,) = findings_of(trace.report().findings, "fragmentation")
    took = torch.cuda.max_memory_reserved()
    run(LENGTHS, before=MODEL, conf="expandable_segments:True", **full)
    assert mine.low == mine.high == took - torch.cuda.max_memory_reserved()
    figures = re.findall(r"[\d.]+ [KMG]iB", f"{mine.title} {mine.evidence}")
    assert len(figures) > 4
    assert max(map(parse_bytes, figures)) <= 1.01 * took


def test_a_cache_that_goes_back_while_the_card_has_room_was_no_refusal():
    """As cuDNN's benchmark mode does it, which no line of the user's asks for."""
    with virtual.activated("T4"), nbmem.trace("cell") as trace:
        for size in (100, 200, 300):
            torch._C._cuda_emptyCache()
            torch.empty(size << 20, dtype=torch.uint8, device="cuda")
    (card,) = trace.session.devices
    given_back = releases_for_requests(card)
    assert given_back
    assert all(had_room(CardLedger(trace.session), at) for at in given_back)


STUCK = """
pairs = [
    [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)] for _ in range(30)
]
for pair in pairs:
    del pair[1:]
"""


def test_pieces_of_segments_in_use_do_not_count_as_cache(run):
    trace, _ = run(STUCK, before="import torch")
    stuck = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    said = sum(f.high for f in findings_of(trace.all_tips(), "cached_memory"))
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() == said < stuck


TOO_LARGE = """
model = net(1024, 24)
try:
    model(batch({rows})).sum().backward()
except torch.cuda.OutOfMemoryError:
    pass
"""
OTHERS = 13 << 30


def test_an_error_that_the_program_caught_is_no_reason_to_shrink_the_batch(run):
    trace, _ = run(TOO_LARGE.format(rows=40000), before=MODEL, card="T4", other_processes=OTHERS)
    assert not findings_of(trace.report().findings, "batch_size")


def test_another_process_on_a_full_card_is_named_with_its_bytes(run):
    trace, _ = run(TOO_LARGE.format(rows=40000), before=MODEL, card="T4", other_processes=OTHERS)
    (mine,) = findings_of(trace.report().findings, "other_process")
    assert mine.low == mine.high == OTHERS


@pytest.mark.parametrize("wddm", [True, False])
def test_what_windows_put_into_the_hosts_memory_is_told_with_its_bytes(run, wddm):
    trace, _ = run(TOO_LARGE.format(rows=8192), before=MODEL)
    (card,) = trace.session.devices
    reserved = int(card_ledger_of(trace.session).reserved.max())
    small = replace(card.info, total_bytes=reserved - 64 * MIB, driver_bytes=0, wddm=wddm)
    spilled = replace(card, info=with_spilled(small, reserved, card.samples[:0]))
    session = replace(trace.session, devices=(spilled,))
    card_ledger = card_ledger_of(session)
    findings = advise(session, card_ledger, report_of(card_ledger)).findings
    mine = findings_of(findings, "spilled_memory")  # a card of another system never does so
    assert [(one.low, one.high) for one in mine] == [(64 * MIB, 64 * MIB)] * wddm


def test_a_batch_that_can_grow_grows_to_what_fits(run):
    loop = (
        "model = net(1024, 12)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(2):\n    model(batch({rows})).sum().backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    trace, _ = run(loop.format(rows=2048), before=MODEL, card="T4")
    (mine,) = findings_of(trace.all_tips(), "card_empty")
    rows = int(mine.code.split()[2])
    largest, _ = run(loop.format(rows=rows), before=MODEL, card="T4")
    report = largest.report()
    assert report.error is None
    assert report.peak.process > 0.6 * report.device.total_bytes


def test_a_smaller_workspace_gives_back_what_was_said(run, monkeypatch):
    loop = "model = net()\nmodel(batch()).sum().backward()"
    trace, _ = run(loop, before=MODEL)
    (mine,) = findings_of(trace.all_tips(), "workspace")
    left = trace.report().ledger_at_end.allocated
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    smaller, _ = run(loop, before=MODEL)
    assert left - smaller.report().ledger_at_end.allocated == mine.low == mine.high
    assert not findings_of(smaller.all_tips(), "workspace")


def test_without_cudnns_search_the_peak_falls_by_what_was_said(run):
    before = """
import torch
from nbmem import virtual
from tests.fake_cudnn import FakeCudnn
virtual.active().dnn = FakeCudnn(1 << 20, 9 << 30, 0)
torch.backends.cudnn.benchmark = False
"""
    train = """
model = torch.nn.Conv2d(16, 16, 3, padding=1, device="cuda")
for _ in range(2):
    model(torch.zeros(256, 16, 64, 64, device="cuda")).square().mean().backward()
"""
    trace, _ = run("torch.backends.cudnn.benchmark = True" + train, before=before)
    (mine,) = findings_of(trace.report().findings, "cudnn_benchmark")
    assert trace.report().holdings[0].name == "cuDNN's search for the fastest kernel"
    plain, _ = run(mine.code + train, before=before)
    peaks = [one.report().peak.allocated for one in (trace, plain)]
    assert peaks[0] - peaks[1] == mine.low == mine.high
    assert not findings_of(plain.all_tips(), "cudnn_benchmark")


DISTRIBUTED = {
    "name": "model",
    "class": "DistributedDataParallel",
    "bytes": 25_190_400,
    "called": True,
    "gradient_as_bucket_view": False,
}


def advice_with(trace, **facts):
    """Return the tips for a recording with other facts."""
    session = replace(trace.session, facts={**trace.session.facts, **facts})
    card_ledger = card_ledger_of(session)
    return advise(session, card_ledger, report_of(card_ledger)).findings


def test_buckets_of_ddp_are_as_large_as_the_gradients(run):
    trace, _ = run(
        "model = net()\noptimizer = torch.optim.SGD(model.parameters())\nfor _ in range(2):\n"
        "    model(batch(16)).sum().backward()\n    optimizer.step()\n    optimizer.zero_grad()",
        before=MODEL,
    )
    (mine,) = findings_of(advice_with(trace, modules=[DISTRIBUTED]), "ddp_buckets")
    backward = next(row for row in trace.report().phases if row.name == "backward")
    assert mine.low == mine.high == backward.ledger_at_end[Category.GRADIENTS]
    viewed = {**DISTRIBUTED, "gradient_as_bucket_view": True}
    assert not findings_of(advice_with(trace, modules=[viewed]), "ddp_buckets")


SHARDED = """
from torch.distributed.fsdp import fully_shard
torch.distributed.init_process_group("nccl", rank=0, world_size=4)
model = net(2048, 8)
{cut}
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(batch(16, 2048)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""


@pytest.mark.skipif(torch.__version__ < "2.11", reason="the card runs the newest FSDP alone")
def test_a_unit_that_is_the_model_gathers_all_of_it(run):
    one, _ = run(SHARDED.format(cut=""), before=MODEL)
    (mine,) = findings_of(one.all_tips(), "fsdp_unit")
    many, _ = run(SHARDED.format(cut=mine.code), before=MODEL)
    assert not findings_of(many.all_tips(), "fsdp_unit")
    saved = one.report().peak.allocated - many.report().peak.allocated
    assert mine.low <= saved <= mine.high
    assert mine.low > one.report().peak.allocated // 8


ZERO = """
engine = Engine(net(1024, 4).cuda(), DeepSpeedZeroOptimizer({elements}))
bucket = engine.optimizer.ipg_buckets[torch.float32]
learned = list(engine.parameters())
for _ in range(2):
    engine(batch(16, 1024)).sum().backward()
    bucket.buffer, at = [torch.empty(engine.optimizer.reduce_bucket_size, device="cuda")], 0
    for p in learned:
        bucket.buffer[0][at : at + p.numel()] = p.grad.view(-1)
        at, p.grad = at + p.numel(), None
    engine.optimizer.average_tensor(bucket.buffer[0])
    bucket.buffer = []
"""


def test_a_bucket_of_zero_that_all_gradients_fill(run, monkeypatch):
    deepspeed.imported(monkeypatch)
    before = MODEL + "from tests.fake_deepspeed import DeepSpeedZeroOptimizer, Engine\n"
    first, names = run(ZERO.format(elements=50_000_000), before=before)
    (mine,) = findings_of(first.report().findings, "zero_bucket")
    _, _, wanted = mine.code.rpartition(" = ")
    assert int(wanted) == sum(p.numel() for p in names["learned"])
    second, _ = run(ZERO.format(elements=wanted), before=before)
    assert not findings_of(second.all_tips(), "zero_bucket")
    saved = first.report().peak.allocated - second.report().peak.allocated
    assert saved == mine.low == mine.high > 4 * 40_000_000


def test_idle_pinned_memory_is_told_from_one_gibibyte_on(run):
    trace, _ = run("x = torch.zeros(1 << 20, device='cuda')", before="import torch")
    gib = 1 << 30
    (mine,) = advice_with(trace, pinned={"held": 3 * gib, "used": gib})
    assert (mine.rule, mine.low) == ("pinned_memory", 2 * gib)
    assert not advice_with(trace, pinned={"held": 3 * gib, "used": 5 * gib // 2})


SLICES = """
model, data = net(1024, 8), batch(8192)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(data[:64]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.set_grad_enabled({grad}):
    for at in range(0, 8192, 2048):
        output = model(data[at:at + 2048])
"""


def test_passes_over_slices_are_one_phase_and_what_each_graph_kept_is_foreseen(run):
    peaks = []
    for grad in (True, False):
        trace, _ = run(SLICES.format(grad=grad), before=MODEL)
        peaks.append(trace.report().peak.allocated)
        if grad:
            (mine,) = findings_of(trace.report().findings, "no_grad_missing")
            assert [row.name for row in trace.report().phases].count("forward") == 3
    assert mine.low <= peaks[0] - peaks[1] <= mine.high


def test_two_exceptions_of_one_list_are_one_finding_and_no_graph_is_said_twice(run):
    fails = """
model, failed = net(), []
def check(x):
    y = model(x)
    raise ValueError("a shape is wrong")
for _ in range(3):
    try:
        check(batch(1024))
    except ValueError as e:
        failed.append(e)
"""
    trace, _ = run(fails, before=MODEL)
    rules = [finding.rule for finding in trace.report().findings]
    assert rules[0] == "traceback_kept"
    assert "graph_kept" not in rules


def test_beside_what_grows_each_step_has_the_names_of_the_others(run):
    program = next(p for p in FREEING if "register_buffer" in p.code)
    trace, _ = run(program.code, before=program.before)
    card_ledger = CardLedger(trace.session)
    large = card_ledger.allocations.requested >= 8 << 20
    in_forward = large & card_ledger.phases.named(card_ledger.born_in, "forward")
    kept = in_forward & (card_ledger.category == Category.BUFFERS)
    assert kept.sum() == 8, "one for each step, under the buffer's name"
    gone_in = card_ledger.phases.of(card_ledger.allocations.freed)
    saved = in_forward & ~kept & card_ledger.phases.named(gone_in, "backward")
    assert saved.sum() >= 8 * 4
    assert (card_ledger.names[saved] >= 0).all()


def test_larger_blocks_for_the_same_tensors_are_no_growth(run):
    """The allocator leaves up to a MiB in a block, now here, now there."""
    train = "o.zero_grad(); m(x).sum().backward(); o.step()\n"
    before = (
        "import torch\nm = torch.nn.Linear(1024, 1024).cuda()\n"
        "o, x = torch.optim.SGD(m.parameters(), 0.1), torch.ones(8, 1024, device='cuda')\n"
    )
    trace, _ = run(f"for _ in range(5):\n    {train}", before=before + train)
    card_ledger = CardLedger(trace.session)
    assert find_growth(card_ledger) == ()
    allocations = card_ledger.allocations
    gradients = np.flatnonzero(card_ledger.category == Category.GRADIENTS)
    wider = allocations.block.copy()
    wider[gradients] += 512 * np.searchsorted(
        step_ends(card_ledger), allocations.allocated_at[gradients]
    )
    card_ledger.allocations = replace(allocations, block=wider)
    assert find_growth(card_ledger) == ()
