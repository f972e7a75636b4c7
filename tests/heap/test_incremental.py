"""Incremental heap walks: interruptions, limits and leftovers."""

import contextlib
import gc
import importlib
import itertools
import sys
import threading
import time
import weakref

import pytest
import torch

from nbmem.capture.heap import incremental, reachability, reachable_storages, walk, walk_in_pieces
from nbmem.capture.interpreter.busy_threads import threads_using_tensors
from nbmem.capture.tensors.autograd_graphs import Graphs

walking = importlib.import_module(
    "nbmem.capture.heap.heap_walk"
)  # the package has a function so named


def kib(n):
    return torch.zeros(n * 256, device="cuda")


class Box:
    def __init__(self, inner=None):
        self.inner = inner


def chain(length, end):
    for _ in range(length):
        end = Box(end)
    return end


def run(generator):
    count = 0
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value, count
        count += 1


def rows(found):
    return {held.size: {way.path for way in held.holders} for held in found.by_device.get(0, ())}


@pytest.fixture
def short(monkeypatch):
    """Make each piece of the walk one step."""
    monkeypatch.setattr(incremental, "PIECE_S", 0.0)


def test_pieces_find_what_the_whole_walk_finds(short):
    namespace = {"x": kib(1), "deep": chain(50, [kib(2)]), "rows": [Box(i) for i in range(5_000)]}
    whole = walk(namespace)
    found, count = run(walk_in_pieces(namespace))
    assert rows(found) == rows(whole)
    assert found.complete
    assert whole.complete
    assert count > 10


def test_the_search_of_the_whole_heap_is_announced(monkeypatch):
    searched = []
    original = walking.all_tensors
    monkeypatch.setattr(walking, "all_tensors", lambda t: searched.append(1) or original(t))
    work = walk_in_pieces({"x": kib(1)})
    announced = []
    with contextlib.suppress(StopIteration):
        while True:
            coming = next(work)
            announced.append((coming > 0, len(searched)))
    assert (True, 0) in announced  # a caller who waits can leave here
    assert (True, 1) not in announced
    assert searched == [1]


def test_the_collector_runs_between_pieces_and_is_as_it_was_at_the_end(short):
    work = walk_in_pieces({"x": kib(1)})
    states = set()
    with contextlib.suppress(StopIteration):
        while True:
            next(work)
            states.add(gc.isenabled())
    assert states == {True}
    gc.disable()
    try:
        run(walk_in_pieces({"x": kib(1)}))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_closing_the_walk_releases_everything(short):
    things = [Box() for _ in range(3_000)]
    refs = [weakref.ref(thing) for thing in things]
    work = walk_in_pieces({"things": things, "x": kib(1)})
    for _ in range(6):
        next(work)
    work.close()
    del things
    assert not any(ref() for ref in refs)


def test_an_object_freed_between_two_pieces_gives_its_name_to_no_other(short, monkeypatch):
    walking = sys.modules["nbmem.capture.heap.heap_walk"]
    monkeypatch.setattr(walking, "PAUSE_S", 0.0)  # what is done below is quick
    namespace = {"old": {"a": [kib(1)]}, "x": kib(3), "rows": [Box(i) for i in range(3_000)]}
    work = walk_in_pieces(namespace)
    next(work)
    count = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            found = rows(end.value)
            break
        count += 1
        if count == 3:
            namespace["old"]["a"].clear()
            namespace["old"].clear()
        if count % 5 == 0:  # new objects at the places of dead ones
            namespace["rows"][count % 3_000] = Box([kib(2)])
    assert found[3072] == {"x"}
    wrong = {path for paths in found.values() for path in paths if path.startswith("a key of")}
    assert not wrong
    assert "something that Python cannot see" not in {p for paths in found.values() for p in paths}


def test_a_budget_ends_the_walk_and_nothing_wrong_is_reported(short):
    namespace = {"x": kib(1), "data": [[Box(i)] for i in range(20_000)]}
    found = walk(namespace, budget_s=0.0)
    assert not found.complete
    assert rows(found) == {}
    asked = []
    found = walk(namespace, go_on=lambda: asked.append(1) or len(asked) < 10_000)
    assert found.complete
    assert "x" in rows(found)[1024]
    stopped = walk(namespace, go_on=lambda: False)
    assert not stopped.complete
    assert not stopped.by_device


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RecursionError])
def test_an_exception_in_its_middle_leaves_nothing_behind(monkeypatch, error):
    calls = []

    def fail_late(_index):
        calls.append(1)
        if len(calls) == 5:
            raise error
        return itertools.repeat(_index)

    monkeypatch.setattr(reachability, "repeat", fail_late)
    things = [[Box()] for _ in range(3_000)]
    refs = [weakref.ref(row[0]) for row in things]
    namespace = {"deep": {"er": things}, "x": kib(1)}
    kept = None
    try:
        walk(namespace)
    except error as err:
        kept = err
    assert kept is not None
    assert gc.isenabled()
    assert not torch._C._is_torch_function_all_disabled()
    namespace.clear()
    del things
    assert not any(ref() for ref in refs)


def test_an_interrupt_at_any_moment_leaves_the_collector_on(monkeypatch):
    namespace = {"x": kib(1), "deep": chain(20, kib(2))}
    for limit in range(50, 4_000, 397):
        left = [limit]

        def trace(_frame, _event, _arg, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return trace if left[0] > 0 else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            walk(namespace)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert gc.isenabled()
        assert not torch._C._is_torch_function_all_disabled()


def test_the_users_exception_keeps_its_locals():
    def fail():
        mine = kib(1)
        raise ValueError(mine is None)

    try:
        fail()
    except ValueError as err:
        frame = err.__traceback__.tb_next.tb_frame
        with pytest.raises(KeyboardInterrupt):
            walk({"x": kib(1)}, met=interrupt)
        assert "mine" in frame.f_locals


def interrupt(_):
    raise KeyboardInterrupt


def test_a_chain_of_twenty_thousand(monkeypatch):
    found = walk({"head": chain(20_000, kib(1))})
    (held,) = found.by_device[0]
    assert [way.path for way in held.holders if way.root == "head"] == ["head" + ".inner" * 20_000]


def test_everything_that_refers_to_a_tensor_in_a_large_graph_costs_its_edges(monkeypatch):
    """Steps in proportion to objects and references, whatever refers to whatever."""
    steps = []
    true_steps = walking._WalkInProgress.steps

    def counted(self):
        for step in true_steps(self):
            steps.append(step)
            yield step

    monkeypatch.setattr(walking._WalkInProgress, "steps", counted)
    counts = []
    for size in (2_000, 8_000):
        shared = Box(kib(1))
        boxes = [Box(shared) for _ in range(size)]
        for i, box in enumerate(boxes):
            box.others = [boxes[(i * 7 + k * 31) % size] for k in range(4)]
        steps.clear()
        assert rows(walk({"boxes": boxes}))[1024]
        counts.append(len(steps))
    assert counts[1] < 8 * counts[0]


# --- nothing is read while another thread may be using tensors


@contextlib.contextmanager
def a_thread(source, folder):
    """Start a thread of a user module, in the middle of its work."""
    ready, done = threading.Event(), threading.Event()
    space = {"__name__": "a_module", "ready": ready, "done": done, "time": time}
    file = folder / "a_module.py"
    file.write_text(f"def work():\n    ready.set()\n    {source}\n")
    exec(compile(file.read_text(), str(file), "exec"), space)
    thread = threading.Thread(target=space["work"], name="theirs")
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_nothing_is_read_while_a_thread_works(monkeypatch, tmp_path):
    looked = []
    monkeypatch.setattr(Graphs, "of_tensor", lambda _self, tensor: looked.append(tensor) or [])
    with a_thread("while not done.is_set(): pass", tmp_path):
        found = walk({"x": kib(1)})
    assert found.hindered == ("theirs",)
    assert not found.complete
    assert rows(found) == {}
    assert not looked


@pytest.mark.parametrize("source", ["done.wait()", "while not done.is_set(): time.sleep(0.05)"])
def test_a_thread_that_waits_or_sleeps_takes_nothing_away(source, tmp_path):
    with a_thread(source, tmp_path):
        while threads_using_tensors():
            time.sleep(0.001)
        found = walk({"x": kib(1)})
    assert "x" in rows(found)[1024]
    assert found.complete


def test_a_thread_of_an_installed_package_takes_nothing_away(tmp_path):
    """Installed anywhere: a system's packages stand behind an environment's."""
    folder = tmp_path / "dist-packages" / "a_package"
    folder.mkdir(parents=True)
    with a_thread("while not done.is_set(): pass", folder):
        found = walk({"x": kib(1)})
    assert "x" in rows(found)[1024]
    assert found.complete


def test_a_thread_that_begins_to_work_ends_the_walk(tmp_path):
    namespace = {f"x{i}": kib(1) for i in range(2000)}
    work = walk_in_pieces(namespace)
    next(work)
    with a_thread("while not done.is_set(): pass", tmp_path):
        found, _ = run(work)
    assert found.hindered == ("theirs",)
    assert not found.complete


# --- no code of the user's


@pytest.mark.parametrize(
    "key", [10**5000, -(10**5000), (1, 10**5000)], ids=["long", "negative", "in a tuple"]
)
def test_a_key_that_python_does_not_write_takes_no_other_name(key):
    rows_of = rows(walk({"d": {key: kib(1), "a": kib(2)}}))
    assert "d[...]" in rows_of[1024]
    assert "d['a']" in rows_of[2048]


def test_a_metaclass_does_not_affect_the_walk():
    class Meta(type):
        def __eq__(cls, other):
            raise AssertionError("eq")

        def __hash__(cls):
            raise AssertionError("hash")

        def __instancecheck__(cls, thing):
            raise AssertionError("instance")

        def __subclasscheck__(cls, kind):
            raise AssertionError("subclass")

        def __getattribute__(cls, name):
            raise AssertionError(name)

    class Quiet(metaclass=Meta):
        pass

    plain = object.__new__(Quiet)
    object.__setattr__(plain, "inner", [kib(1)])
    found = walk({"plain": plain, "row": [plain] * 3, "data": {1: (plain, Box(plain))}})
    assert "plain.inner[0]" in rows(found)[1024]
    assert reachable_storages({"plain": plain})


def test_a_metaclass_of_a_tensor_does_not_affect_the_walk():
    class Meta(type(torch.Tensor)):
        def __eq__(cls, other):
            raise AssertionError("eq")

        def __hash__(cls):
            raise AssertionError("hash")

    class Loud(torch.Tensor, metaclass=Meta):
        pass

    loud = torch.Tensor._make_subclass(Loud, kib(2))
    assert "loud" in rows(walk({"loud": loud}))[2048]
