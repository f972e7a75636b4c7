"""Bounds on what a virtual card keeps of past steps."""

import gc

import torch

from nbmem.core.runtime.bounded_cache import RecentAnswers
from nbmem.core.session.events import Action
from nbmem.virtual.hardware import stacks
from nbmem.virtual.patches import activation


def test_the_same_steps_add_no_answers_whatever_their_numbers(gpu):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3))).cuda()
    x = torch.ones(4, 8, device="cuda")
    for optimizer in (
        torch.optim.Adam(model.parameters()),
        torch.optim.AdamW(model.parameters(), foreach=False),
    ):
        known = []
        for step in range(6):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            (model(x).sum() * (0.5 + step)).backward()
            optimizer.step()
            optimizer.zero_grad()
            known.append(len(activation.activation().mode._known))
        assert known[2:] == [known[2]] * 4


def test_a_number_that_decides_is_no_other_number(gpu):
    x = torch.ones(4, 4, device="cuda")
    assert torch.arange(0, 1.0, 0.25, device="cuda").shape == (4,)
    assert torch.arange(0, 1.0, 0.5, device="cuda").shape == (2,)
    up = torch.nn.functional.interpolate
    assert up(x[None, None], scale_factor=2.0).shape == (1, 1, 8, 8)
    assert up(x[None, None], scale_factor=3.0).shape == (1, 1, 12, 12)
    whole = torch.ones(4, dtype=torch.int64, device="cuda")
    assert torch.mul(whole, 2).dtype is torch.int64
    assert torch.mul(whole, 2.0).dtype is torch.float32


def test_shapes_that_change_are_forgotten_and_those_in_use_are_not():
    answers = RecentAnswers(most=100)
    answers.put("in use", 1)
    for n in range(1000):
        answers.put(n, n, weight=3)
        assert answers.get("in use") == 1
        assert len(answers) <= 40
    assert answers.get(0) is None
    assert answers.get(999) == 999


def test_a_frame_is_judged_once_however_many_events_have_it(gpu, monkeypatch):
    class Counted(tuple):
        __slots__ = ()

        def __iter__(self):
            judged.append(1)
            return super().__iter__()

    def steps(count):
        for _ in range(count):
            torch.ones(1000, device="cuda")

    judged = []
    monkeypatch.setattr(stacks, "_BETWEEN", Counted(stacks._BETWEEN))
    torch.cuda.memory._record_memory_history(stacks="python")
    counts = []
    for count in (10, 500):
        steps(count)
        judged.clear()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        counts.append(len(judged))
    assert len(trace) > 1500
    assert 0 < counts[1] <= counts[0] + 2


def test_annotations_are_those_of_the_recording_and_no_more_than_its_ring(gpu):
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    listed = []
    for _ in range(3):
        torch.cuda.memory._record_memory_history(context=None)
        optimizer.step()
        listed.append(len(torch.cuda.memory._snapshot()["external_annotations"]))
        torch.cuda.memory._record_memory_history(None)
    assert listed == [2, 2, 2]
    torch.cuda.memory._record_memory_history(context=None, max_entries=10)
    for _ in range(20):
        optimizer.step()
    notes = torch.cuda.memory._snapshot()["external_annotations"]
    assert [note["stage"] for note in notes] == ["START", "END"] * 5
    assert notes == sorted(notes, key=lambda note: note["time_us"])


def test_events_are_no_objects_of_the_collectors(gpu):
    torch.cuda.memory._record_memory_history(stacks="python")
    ring = gpu.history.ring
    for _ in range(50):
        torch.ones(1000, device="cuda")
    assert len(ring.addr) > 100
    tracked = {id(value) for column in ring for value in column if gc.is_tracked(value)}
    assert tracked <= set(map(id, Action))
