"""Tips on what other threads keep."""

import gc

import pytest

from tests.tips.programs import MODEL

torch = pytest.importorskip("torch", reason="the programs are torch programs")

WORKER = """
import threading, weakref

class Pages:
    def __init__(self):
        self.kept = [torch.zeros(4 << 20, device="cuda") for _ in range(4)]
        self.stop, self.started = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.work, name=f"pages {len(ends)}", daemon=True)
        self.thread.start()
        self.started.wait()
        ends.append((self.stop, weakref.ref(self.thread)))

    def work(self):
        self.started.set()
        self.stop.wait()

    def close(self):
        self.stop.set()
        self.thread.join()

ends = []
"""
USED = """
pages = Pages()
for one in pages.kept:
    one += 1
{behind}
del pages, one
for _ in range(40):
    x = torch.zeros(1024, device="cuda") + 1
{after}
"""


@pytest.fixture
def end(run):
    """Run a program; return its tips on threads, and a call that ends them."""
    ended = []

    def work(code):
        trace, names = run(code, before=MODEL + WORKER)
        ends = names["ends"]

        def stop():
            for event, thread in ends:
                event.set()
                if (running := thread()) is not None:
                    running.join()
            gc.collect()

        ended.append(stop)
        return [one for one in trace.all_tips() if one.rule == "thread_kept"], stop

    yield work
    for stop in ended:
        stop()


def test_what_a_waiting_thread_keeps_is_told(end):
    (mine,), stop = end(USED.format(behind="", after="") * 2)
    assert mine.title.startswith("`self.kept` of work() in 2 threads keeps 128.0 MiB that no ")
    before = torch.cuda.memory_allocated()
    stop()
    assert before - torch.cuda.memory_allocated() == mine.low == mine.high == 128 << 20


SILENT = {
    "a thread that was ended": USED.format(behind="pages.close()", after=""),
    "a thread that goes on": USED.format(
        behind="first = pages.kept[0]\nlater = pages.kept",
        after="for one in later: one += 1\ndel one, first, later",
    ),
    "a name that has it, too": USED.format(behind="later = pages.kept", after=""),
    "a thread with a model": USED.format(
        behind="pages.model = net()\npages.model(batch())", after=""
    ),
    "what nothing has used yet": USED.replace("one += 1", "pass").format(behind="", after=""),
}


@pytest.mark.parametrize("code", SILENT.values(), ids=SILENT)
def test_what_a_thread_may_use_again_is_not_told(end, code):
    found, _ = end(code)
    assert found == []
