"""Ways to set up a real card; the ledger balances in all of them.

Nothing here asks which card it is: the tests hold on a real one, and on torch's own CUDA code
without one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
BEGIN = """
import json, torch
import nbmem.api.tracing as nbmem
from nbmem.core.session.categories import Category
from nbmem.capture.devices.nvml import NvmlProbe

def train(steps=2):
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        model(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer

def told(t, device=0, **others):
    report = t.report(device)
    ledger = report.ledger_at_end
    ledger.check(
        allocated=torch.cuda.memory_allocated(device), reserved=torch.cuda.memory_reserved(device)
    )
    reading = NvmlProbe().read(device)
    print(json.dumps({
        "card": report.device.name,
        "balance": sum(ledger.held) == reading.total,
        "process": ledger.process == reading.process,
        "phases": [phase.name for phase in report.phases],
        "peak": report.peak.allocated,
        "notes": list(report.notes),
        **{c.name.lower(): ledger[c] for c in Category if ledger[c]},
        **others,
    }))
"""
TRACED = """
with nbmem.trace("train", namespace={}) as t:
    kept = train()
told(t)
"""
STEPS = ["load", *["input", "forward", "backward", "optimizer", "zero_grad"] * 2]


def run(code, **env):
    """Run a program; parse the JSON in its last line."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + code],
        cwd=ROOT, env=os.environ | env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def balanced(found):
    assert found["balance"]
    assert found["process"] or found["notes"]
    assert found["weights"] == (1024 * 1024 + 1024) * 4
    return found


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:64"])
def test_settings_of_the_allocator(conf):
    found = balanced(run(TRACED, PYTORCH_CUDA_ALLOC_CONF=conf))
    assert found["phases"] == STEPS


def test_another_allocator_costs_the_report_and_not_the_cell():
    code = """
with nbmem.trace("train", namespace={}) as t:
    kept = train()
print(json.dumps(list(t.session.notes)))
"""
    (note,) = run(code, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert "another allocator here (cudaMallocAsync)" in note


def by_uuid():
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


@pytest.mark.parametrize("form", ["0", "uuid"])
def test_a_card_is_found_by_each_form_of_cuda_visible_devices(form):
    found = balanced(run(TRACED, CUDA_VISIBLE_DEVICES=by_uuid() if form == "uuid" else form))
    assert found["card"] == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("form", ["", "-1"])
def test_a_program_that_hides_the_cards_has_none(form):
    code = """
with nbmem.trace("nothing", namespace={}) as t:
    torch.ones(3)
str(t)
print(json.dumps([torch.cuda.is_available(), torch.cuda.is_initialized()]))
"""
    assert run(code, CUDA_VISIBLE_DEVICES=form) == [False, False]


def test_the_second_card_is_the_second_by_nvml_too():
    if torch.cuda.device_count() < 2:
        pytest.skip("the machine has one card")
    code = """
with nbmem.trace("two", namespace={}) as t:
    kept = torch.zeros(1 << 20, device="cuda:1")
told(t, 1)
"""
    found = run(code)
    assert found["balance"]
    assert found["card"] == torch.cuda.get_device_name(1)
    assert found["peak"] == 4 * MIB


def test_what_another_process_holds_is_its_own():
    code = """
import subprocess, sys
hold = '''
import sys, torch
x = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
print(flush=True)
input()
'''
with nbmem.trace("train", namespace={}) as t:
    kept = train()
with subprocess.Popen([sys.executable, "-c", hold], stdin=-1, stdout=-1) as other:
    other.stdout.readline()
    with nbmem.trace("beside", namespace={}) as t:
        kept += (torch.zeros(1, device="cuda"),)
    told(t, pid=other.pid)
    other.communicate(b"\\n")
"""
    found = run(code)
    assert found["balance"]
    assert found["other_processes"] > 64 * MIB


def test_a_history_of_the_users_own_stays_theirs():
    code = """
torch.cuda.memory._record_memory_history(max_entries=1000)
mine = torch.zeros(1 << 20, device="cuda")
with nbmem.trace("train", namespace={}) as t:
    kept = train()
events = torch.cuda.memory._snapshot()["device_traces"][0]
first = [event["size"] for event in events if event["action"] == "alloc"][0]
after = len(events)
torch.zeros(1 << 20, device="cuda")
more = len(torch.cuda.memory._snapshot()["device_traces"][0]) > after
told(t, first=first, more=more)
"""
    found = balanced(run(code))
    assert found["first"] == 4 * MIB
    assert found["more"]


def test_torchs_profiler_around_a_trace_sees_what_it_sees_without():
    code = """
from torch.profiler import profile
with profile(profile_memory=True) as seen:
    with nbmem.trace("train", namespace={}) as t:
        kept = train()
told(t, profiled=any(event.key == "aten::addmm" for event in seen.key_averages()))
"""
    found = balanced(run(code))
    assert found["profiled"]


def test_a_graph_keeps_its_pool_and_replays():
    code = """
model = torch.nn.Linear(1024, 1024, device="cuda")
x = torch.randn(8, 1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side), torch.no_grad():
    model(x)
torch.cuda.current_stream().wait_stream(side)
with nbmem.trace("graph", namespace={}) as t:
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
told(t)
"""
    found = balanced(run(code))
    assert found["cached_stuck"] > 0


def test_an_error_that_the_program_catches_is_seen_by_torchs_observer():
    code = """
torch.cuda.set_per_process_memory_fraction(0.02)
with nbmem.trace("train", namespace={}) as t:
    kept = train()
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
(refusal,) = t.session.refusals
told(t, wanted=refusal.wanted, innermost=refusal.stack[0].function)
"""
    found = balanced(run(code))
    assert found["wanted"] == 1 << 40
