"""The sidebar's hub without a kernel: pushes, replies and faults."""

import os
import sys
import threading
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from nbmem.core.errors import UsageError
from nbmem.core.session.cell_delta import CellDelta, CellPeak
from nbmem.frontends.sidebar.hub import Hub
from nbmem.frontends.sidebar.message_codec import decode_push, decode_reply, encode
from nbmem.frontends.sidebar.messages import (
    CardSample,
    Cell,
    CellBegun,
    CellEnded,
    HostSample,
    Loaded,
    Note,
    Process,
    Processes,
    Sample,
    Unloaded,
)
from nbmem.frontends.sidebar.request_handler import RequestHandler
from nbmem.frontends.sidebar.requests import (
    Done,
    ExpectQuestion,
    GetState,
    MuteRule,
    Refused,
    RunCommand,
    TraceNext,
)
from nbmem.report.model import Command
from tests.sidebar import examples

CELL = Cell(number=1, cell_id=None, label="train()", traced=False, begun_ms=0.0)
DELTA = CellDelta(
    label="train()",
    execution_count=1,
    allocated_before=0,
    allocated_after=512,
    reserved_before=0,
    reserved_after=512,
    peak=None,
    process=None,
    duration_ns=1,
    error=None,
)


class Reader:
    """Fake of CardReader with given readings."""

    def __init__(self):
        self.allocated = 512
        self.others = ()
        self.fault = None
        self.read_in = set()
        self.told = threading.Event()

    def begin(self, meter=None):
        pass

    def close(self):
        pass

    def processes(self):
        return self.others

    def read_unused(self):
        return ()

    def read(self, _recorder):
        self.read_in.add(threading.current_thread().name)
        if self.fault is not None:
            raise self.fault
        return (
            CardSample(
                index=0,
                name=None,
                virtual=False,
                total=None,
                allocated=self.allocated,
                reserved=self.allocated,
                process=None,
                free=None,
                driver=0,
                peak=self.allocated,
                peak_exact=False,
                by_category=(),
                frameworks=(),
            ),
        )


@pytest.fixture
def reader(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    return Reader()


@pytest.fixture
def sent():
    return []


@pytest.fixture
def hub(reader, sent):
    hub = Hub(lambda data: sent.append(decode_push(data)), lambda: None)
    hub._readings.cards = reader
    hub.hz = 1000
    yield hub
    hub.close()


def ticks(hub, count=1):
    """Wait until the hub's thread has read so often."""
    seen = threading.Semaphore(0)

    def watch(_sample):
        seen.release()

    hub.watchers.append(watch)
    for _ in range(count):
        assert seen.acquire(timeout=10)
    hub.watchers.remove(watch)


def kinds(sent):
    return [type(message) for message in sent]


def test_a_cell_is_reported_from_its_beginning_to_its_end(hub, reader, sent):
    hub.cell_begun(CELL)
    ticks(hub)
    reader.allocated = 1024
    ticks(hub, 2)
    hub.cell_ended(CELL, DELTA)
    assert kinds(sent) == [CellBegun, Sample, Sample, CellEnded]
    assert [sample.cards[0].allocated for sample in sent[1:3]] == [512, 1024]
    assert sent[-1].delta == DELTA
    assert "nbmem live" in reader.read_in


def test_the_last_sample_of_a_cell_has_the_peak_of_its_line(hub, sent):
    hub.cell_begun(CELL)
    peak = CellPeak(device=0, allocated=2048, exact=True)
    hub.cell_ended(CELL, replace(DELTA, peak=peak))
    sample, ended = sent[-2:]
    (card,) = sample.cards
    assert (card.peak, card.peak_exact) == (peak.allocated, peak.exact)
    assert ended.delta.peak == peak


def test_nothing_is_said_twice_and_nothing_after_the_end(hub, sent):
    hub.cell_begun(CELL)
    ticks(hub, 20)
    hub.cell_ended(CELL, DELTA)
    messages = kinds(sent)
    assert messages == [CellBegun, Sample, CellEnded]
    hub.cell_ended(CELL, DELTA)
    assert kinds(sent) == messages
    assert not hub._awake.is_set(), "the thread sleeps"


def test_a_report_that_is_renewed_between_cells_is_sent(hub, sent):
    hub.cell_begun(CELL)
    hub.cell_ended(CELL, DELTA)
    before = len(sent)
    hub.show(examples.REPORT)
    assert kinds(sent)[before:] == [type(examples.REPORT)]


def test_a_quick_cell_costs_no_more_than_its_end(hub, sent):
    hub.hz = 2
    hub.cell_begun(CELL)
    hub.cell_ended(CELL, DELTA)
    assert kinds(sent) == [Sample, CellEnded]


def test_what_is_on_the_card_when_nbmem_is_loaded_is_sent(hub, reader, sent):
    hub.loading_cell_ended(CELL)
    assert kinds(sent) == [Sample, CellEnded]
    assert (sent[0].cards[0].allocated, sent[1].delta) == (512, None)
    reader.read = lambda _recorder: ()
    hub.loading_cell_ended(CELL)
    assert len(sent) == 2  # without a card in use the page offers a virtual one


def test_without_torch_nothing_is_read_nor_sent(hub, reader, sent, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    hub.cell_begun(CELL)
    ticks(hub)
    hub.cell_ended(CELL, None)
    assert sent == []
    assert reader.read_in == set()


class Machine:
    """Fake of HostReader."""

    def __init__(self):
        self.process, self.free = 100, 900
        self.cells = 0

    def begin(self):
        self.cells += 1

    def read(self, _progress):
        self.free -= 1  # other programs are never still
        return HostSample(
            total=1000,
            process=self.process,
            peak=self.process,
            peak_exact=False,
            free=self.free,
            by_category=(),
            parts=(("cache", "of it page cache", self.free),),
        )


@pytest.fixture
def machine(hub, reader, monkeypatch):
    monkeypatch.setattr(reader, "read", lambda _progress: ())
    hub._readings.host = Machine()
    return hub._readings.host


def test_without_a_card_the_host_is_reported_until_the_cell_ends(hub, machine, sent):
    hub.cell_begun(CELL)
    ticks(hub, 20)
    machine.process = 200
    ticks(hub, 2)
    hub.cell_ended(CELL, None)
    assert kinds(sent) == [CellBegun, Sample, Sample, CellEnded]
    assert [message.host.process for message in sent[1:3]] == [100, 200]
    assert (sent[-1].delta, machine.cells) == (None, 1)
    assert hub.state().cell is None


def test_beside_a_card_in_use_the_host_is_not_asked(hub, sent):
    hub._readings.host = None  # would be made
    hub.cell_begun(CELL)
    ticks(hub)
    hub.cell_ended(CELL, DELTA)
    assert hub._readings.host is None
    assert [m.host for m in sent if isinstance(m, Sample)] == [None]


def test_other_processes_are_told_when_they_change(hub, reader, sent):
    reader.others = (Process(card=0, pid=7, name="python", notebook="b.ipynb", used=5),)
    hub.cell_begun(CELL)
    ticks(hub, 5)
    hub.cell_ended(CELL, DELTA)
    assert kinds(sent).count(Processes) == 1
    assert hub.state().processes == reader.others


def test_a_broken_reading_is_one_note_and_the_end(hub, reader, sent):
    reader.fault = ValueError("gone")
    hub.cell_begun(CELL)
    hub._thread.join(timeout=10)
    hub.cell_ended(CELL, DELTA)
    hub.cell_begun(CELL)
    (note,) = sent
    assert isinstance(note, Note)
    assert note.sentence == (
        "The live readings stopped: ValueError('gone'). Your code and the reports are not "
        "affected. `%reload_ext nbmem` starts them again."
    )
    assert hub.state().notes == (note.sentence,)


def test_a_line_that_is_cut_ends_it_without_an_exception(reader):
    def cut(_data):
        raise ConnectionError

    hub = Hub(cut, lambda: None)
    hub._readings.cards = reader
    hub.cell_begun(CELL)
    hub.cell_ended(CELL, DELTA)
    assert len(hub.state().notes) == 1


def test_a_forked_child_is_silent(hub, sent, monkeypatch):
    hub.cell_begun(CELL)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    hub._lock.acquire()  # as the thread may have held it when the process forked
    before = len(sent)
    hub.cell_ended(CELL, DELTA)
    hub.close()
    assert len(sent) == before
    hub._lock.release()


def test_opening_and_closing_send_one_message_each(hub, sent):
    hub.open()
    hub.close()
    hub.close()
    assert kinds(sent) == [Loaded, Unloaded]


def test_what_was_remembered_survives_a_reload(hub, sent):
    hub.cell_begun(CELL)
    hub.show(examples.REPORT)
    hub.cell_ended(CELL, DELTA)
    after = Hub(sent.append, lambda: None, hub.state()).state()
    assert after.cells[-1].delta == DELTA
    assert after.report == examples.REPORT
    assert after.samples


# --- answers


class Actions:
    """Fake of the notebook's actions."""

    tracing_next = False

    def __init__(self):
        self.did = []

    def free(self, command):
        self.did.append((command.name, *command.arguments))
        return "done", 7

    def choose_card(self, card):
        return card

    def expect_question(self):
        self.did.append("expected")

    def mute(self, rule, *, muted):
        raise ZeroDivisionError(rule, muted)

    def muted(self):
        return ()


@pytest.fixture
def ask(hub):
    actions = Actions()
    answers = RequestHandler(hub, actions, lambda action: action())

    def ask(request):
        return decode_reply(answers.to(encode(request)))

    return SimpleNamespace(ask=ask, actions=actions, answers=answers)


@pytest.mark.parametrize(
    ("command", "offered"),
    [
        (("free", ("cache",)), True),
        (("free", ("out",)), True),
        (("free", ("everything",)), False),
        (("free", ()), False),
        (("off", ()), False),
    ],
)
def test_only_what_a_finding_offers_is_run(hub, ask, command, offered):
    out = Command(name="free", arguments=("out",))
    finding = replace(examples.REPORT.findings[0], command=out)
    hub.show(replace(examples.REPORT, findings=(finding,)))
    name, arguments = command
    answer = ask.ask(RunCommand(id="1", name=name, arguments=arguments))
    assert isinstance(answer, Done if offered else Refused)
    assert ask.actions.did == ([(name, *arguments)] if offered else [])
    brought = ask.ask(GetState(id="2")).report.findings[0].measured
    assert brought == (7 if arguments == ("out",) else None)


def test_what_a_command_has_changed_is_in_the_state_and_nothing_is_pushed(hub, reader, sent, ask):
    hub.cell_begun(CELL)
    hub.cell_ended(CELL, DELTA)
    before = len(sent)
    reader.allocated = 7
    assert isinstance(ask.ask(RunCommand(id="1", name="free", arguments=("cache",))), Done)
    (card,) = ask.ask(GetState(id="2")).samples[-1].cards
    assert (card.allocated, len(sent)) == (7, before)


def test_nothing_is_run_beside_a_cell(hub, ask):
    hub.cell_begun(CELL)
    answer = ask.ask(RunCommand(id="1", name="free", arguments=("cache",)))
    assert answer == Refused(id="1", sentence="A cell is running. Ask again when it has ended.")
    assert ask.actions.did == []


def test_a_cell_that_began_meanwhile_refuses_the_action(hub, ask):
    def later(action):
        hub.cell_begun(CELL)
        return action()

    ask.answers._between_cells = later
    assert isinstance(ask.ask(RunCommand(id="1", name="free", arguments=("cache",))), Refused)
    assert ask.actions.did == []


def test_a_question_is_expected_once_it_is_typed(ask):
    assert ask.ask(ExpectQuestion(id="q")) == Done(id="q", sentence="")
    assert ask.actions.did == ["expected"]


def test_a_fault_is_an_answer(ask):
    answer = ask.ask(MuteRule(id="9", rule="r", muted=True))
    assert isinstance(answer, Refused)
    assert answer.id == "9"
    assert "It is a fault of nbmem's" in answer.sentence


def test_the_state_is_all_that_a_new_page_needs(hub, ask):
    pytest.importorskip("numpy", reason="the probes need numpy")
    hub.cell_begun(CELL)
    ask.ask(TraceNext(id="t", on=True))
    state = ask.ask(GetState(id="s"))
    assert (state.id, state.cell, state.tracing_next, state.rate_hz) == ("s", CELL, True, 1000)


@pytest.mark.parametrize(
    "data", [None, 7, {"id": {}}, {"nbmem": 1, "kind": "get_state"}, {"id": "a"}]
)
def test_every_request_gets_a_reply(ask, data):
    answer = decode_reply(ask.answers.to(data))
    assert isinstance(answer, Refused)


def test_a_refused_action_says_its_sentence(ask, monkeypatch):
    def refuse(_command):
        raise UsageError("There is nothing to free.")

    monkeypatch.setattr(ask.actions, "free", refuse)
    answer = ask.ask(RunCommand(id="1", name="free", arguments=("cache",)))
    assert answer.sentence == "There is nothing to free."
