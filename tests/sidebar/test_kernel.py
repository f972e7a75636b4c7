"""The sidebar's messages and requests in a real kernel."""

import statistics

import pytest

pytest.importorskip("ipykernel", reason="ipykernel is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from nbmem.capture.record.recording import LEFT
from nbmem.frontends.sidebar.messages import (
    CellBegun,
    CellEnded,
    LastReport,
    Loaded,
    Sample,
    Unloaded,
)
from nbmem.frontends.sidebar.requests import (
    ChooseCard,
    Done,
    GetState,
    MuteRule,
    Refused,
    RunCommand,
    SetRate,
    State,
    TraceNext,
)
from tests.sidebar.kernel import LOAD, Kernel

PRINT = "print(torch.cuda.memory_allocated())"
FILL = """\
kept = []
for _ in range(12):
    kept.append(torch.zeros(1 << 20, device='cuda'))
    time.sleep(0.1)
"""
TRAIN = """\
model = torch.nn.Linear(512, 512, device='cuda')
optimizer = torch.optim.Adam(model.parameters())
for _ in range(15):
    model(torch.zeros(8, 512, device='cuda')).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)"""


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.run(LOAD)
    yield kernel
    kernel.close()


@pytest.fixture(autouse=True)
def nothing_is_kept(kernel):
    yield
    kernel.run("kept = model = optimizer = None", store_history=False)


def reports(ran):
    """Return the text of each output after its replacement."""
    shown = {}
    for n, content in enumerate(ran.outputs("display_data", "update_display_data")):
        shown[content["transient"].get("display_id", n)] = content["data"]
    return list(shown.values())


def test_the_numbers_move_while_the_cell_blocks_the_kernel(kernel):
    ran = kernel.run(FILL + PRINT)
    seen = [sample.cards[0].allocated for sample in ran.samples()]
    assert len(seen) >= 3  # in 1.2 seconds
    assert seen == sorted(set(seen)), "a reading that says nothing new is not sent"
    assert seen[-1] == int(ran.text()) == 12 << 22
    arrived = [push.received for push in ran.pushes]
    assert arrived[0] < arrived[-1] - 0.5, "not all at the end"
    (ended,) = ran.pushed(CellEnded)
    assert ended.delta.peak.allocated == ended.delta.allocated_after == 12 << 22
    assert ended.delta.label == "kept = []"


def test_a_push_arrives_at_once(kernel):
    ran = kernel.run(FILL)
    late_ms = [push.received * 1000 - push.message.t_ms for push in ran.pushes]
    assert statistics.median(late_ms) < 100  # 2 ms on an idle machine; benchmarks measure it


def test_nothing_is_sent_between_cells(kernel):
    kernel.run(FILL)
    assert kernel.silence(1) == [], "each message would count as the kernel's activity"


def test_a_page_finds_the_comm_and_two_pages_are_answered(kernel):
    assert [info["target_name"] for info in kernel.comms().values()] == ["nbmem"]
    kernel.run(FILL)
    for page in kernel.page(), kernel.page():
        state = page.ask(GetState(id="s"))
        assert isinstance(state, State)
        assert (state.id, state.cell) == ("s", None)
        assert state.cards[0].name == "NVIDIA L4"
        assert (
            state.cells[-1].delta.peak.allocated == state.samples[-1].cards[0].allocated == 12 << 22
        )
        assert bool(state.choices) == state.cards[0].virtual, "a real one in use is not changed"


def test_a_busy_kernel_answers_a_subshell_and_defers_what_touches_the_card(kernel, tmp_path):
    subshell = kernel.subshell()
    page = kernel.page(subshell)
    end = tmp_path / "end"
    request = kernel.start(
        f"print('begun', flush=True)\nwhile not __import__('os').path.exists({str(end)!r}):\n"
        "    time.sleep(0.02)"
    )
    while kernel.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    kernel.late.clear()
    if subshell is None:  # ipykernel 6 answers after the cell
        end.touch()
        assert page.ask(GetState(id="1")).cell is None
        return
    state = page.ask(GetState(id="1"))
    assert state.cell.label.startswith("print")
    free = RunCommand(id="3", name="free", arguments=("cache",))
    for asked in ChooseCard(id="2", card="H100"), free:
        refused = page.ask(asked)
        assert isinstance(refused, Refused)
        assert refused.sentence == "A cell is running. Ask again when it has ended."
    end.touch()
    kernel.until_idle(request)


def test_a_card_chosen_from_a_page_is_the_notebooks(kernel):
    done = kernel.page(kernel.subshell()).ask(ChooseCard(id="c", card="L4"))
    assert isinstance(done, Done)
    assert "NVIDIA L4" in done.sentence
    ran = kernel.run("print(torch.zeros(1, device='cuda').device, torch.cuda.get_device_name())")
    assert ran.text() == "cuda:0 NVIDIA L4\n", "the card is in the thread that runs cells"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "not nbmem's"),
        ([1], "not nbmem's"),
        ({"nbmem": 9, "kind": "get_state", "id": "x"}, "of version 9"),
        ({"nbmem": 1, "kind": "run_code", "id": "x"}, "'run_code' is no message"),
        ({"nbmem": 1, "kind": "set_rate", "id": "x", "hz": 1000}, "choose 2 to 10"),
        ({"nbmem": 1, "kind": "choose_card", "id": "x", "card": "no such"}, "no such"),
        (
            {"nbmem": 1, "kind": "run_command", "id": "x", "name": "off", "arguments": []},
            "not what a finding",
        ),
    ],
)
def test_a_hostile_request_gets_a_sentence(kernel, data, says):
    answer = kernel.page().ask_raw(data)
    assert answer["kind"] == "refused"
    assert answer["id"] == (data.get("id", "") if isinstance(data, dict) else "")
    assert says in answer["sentence"]


def test_the_rate_can_be_chosen(kernel):
    page = kernel.page()
    assert isinstance(page.ask(SetRate(id="r", hz=10)), Done)
    ran = kernel.run(FILL)
    assert isinstance(page.ask(SetRate(id="r", hz=4)), Done)
    assert len(ran.samples()) >= 7


def test_a_traced_cell_tells_its_phases_and_its_report(kernel):
    ran = kernel.run(f"%%memtrace train\n{TRAIN}")
    steps = [sample.step for sample in ran.samples() if sample.step is not None]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
    weights = 4 * (512 * 512 + 512)
    named = [{k: b for k, _, b in s.cards[0].by_category} for s in ran.samples()]
    last = next(n for n in reversed(named) if n)
    assert (last["weights"], last["optimizer_state"]) == (weights, 2 * weights)
    for card in (card for sample in ran.samples() for card in sample.cards if card.by_category):
        assert sum(size for *_, size in card.by_category) == card.allocated
    (report,) = ran.pushed(LastReport)
    (ended,) = ran.pushed(CellEnded)
    assert report.peak.allocated == ended.delta.peak.allocated
    assert report.cell == ended.cell
    assert report.cell.traced
    assert sum(b for *_, b in report.at_peak) == report.device.total
    assert {phase.name for phase in report.phases} >= {"forward", "backward", "optimizer"}


def test_a_line_shows_how_far_a_traced_cell_is_and_becomes_the_report(kernel):
    ran = kernel.run(f"%%memtrace train\n{TRAIN}")
    texts = [c["data"]["text/plain"] for c in ran.outputs("display_data", "update_display_data")]
    assert texts[0] == "train: traced"
    assert any("step" in text and "allocated, peak" in text for text in texts[1:-1])
    (report,) = reports(ran)
    assert report["text/plain"].startswith("Peak ")
    assert "text/html" in report
    assert [c["transient"]["display_id"] for c in ran.outputs("display_data")] == [
        c["transient"]["display_id"] for c in ran.outputs("update_display_data")[-1:]
    ]


def test_who_holds_what_is_looked_for_when_nobody_waits(kernel):
    """The cell's reply does not wait for the heap; its report is renewed in place afterwards."""
    kernel.run(
        "from nbmem.frontends.notebook import idle_tasks\nidle_tasks.WAIT_S = 0\n"
        "from nbmem.capture.record.recording import Recording\nlooks = []\n"
        "look = Recording.record_names_and_holders\n"
        "Recording.record_names_and_holders = lambda *a: looks.append(a[1:]) or look(*a)"
    )
    request = kernel.start("%%memtrace\nkept = torch.zeros(8, device='cuda')")
    shown = reports(kernel.until_idle(request))[-1]
    assert LEFT in shown["text/plain"]
    renewed = kernel.until(request, "update_display_data")["content"]["data"]
    assert LEFT not in renewed["text/plain"]
    told = kernel.run(
        "print(all(enough for enough, in looks)); Recording.record_names_and_holders = look"
    ).text()
    assert told == "True\n"  # each look could be left


def test_the_next_cell_waits_for_the_look(kernel):
    """In "Run All" the next request lies in the queue before the kernel ever rests."""
    kernel.run(
        "from nbmem.frontends.notebook import idle_tasks\n"
        "usual = idle_tasks.REST_S, idle_tasks.NEXT_S\n"
        "idle_tasks.WAIT_S = 0\n"
        "idle_tasks.REST_S = idle_tasks.NEXT_S = 60"  # a busy machine takes its time
    )
    traced = kernel.start("%%memtrace\nkept = torch.zeros(8, device='cuda')")
    assert LEFT in reports(kernel.until_idle(traced))[-1]["text/plain"]
    ran = kernel.run("kept = None; idle_tasks.REST_S, idle_tasks.NEXT_S = usual")
    (renewed,) = ran.outputs("update_display_data")
    assert LEFT not in renewed["data"]["text/plain"]
    assert "kept" in renewed["data"]["text/plain"]


RUNS_OUT = """\
%%memtrace
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512, device='cuda') for _ in range(99)])
optimizer = torch.optim.Adam(model.parameters())
model(torch.zeros(1 << 21, 512, device='cuda')).sum().backward()"""


def test_the_card_of_an_error_is_renewed_with_its_report(kernel):
    """Before the names are known, no advice is given that an optimizer would make wrong."""
    usual = "idle_tasks.WAIT_S, idle_tasks.FAILED_S"
    kernel.run(f"from nbmem.frontends.notebook import idle_tasks\nusual = {usual}\n{usual} = 0, 0")
    request = kernel.start(RUNS_OUT)
    first = reports(kernel.until_idle(request))[-1]["text/plain"]
    assert first.startswith("Ran out of memory: 4.00 GiB asked for")
    assert "no optimizer" not in first
    assert "The failure keeps" not in first
    renewed = kernel.until(request, "update_display_data")["content"]["data"]["text/plain"]
    assert renewed.startswith("Ran out of memory: 4.00 GiB asked for")
    assert "The failure keeps 20.00 GiB alive" in renewed
    kernel.run(f"{usual} = usual\n%nbmem free traceback\nmodel = None")
    assert "The failure keeps 20.00 GiB alive" in reports(kernel.run(RUNS_OUT))[-1]["text/plain"]
    kernel.run("%nbmem free traceback")


def test_no_widget_is_text_from_the_first_line_on(kernel):
    ran = kernel.run(f"%%memtrace --no-widget\n{FILL}")
    shown = ran.outputs("display_data", "update_display_data")
    assert {tuple(content["data"]) for content in shown} == {("text/plain",)}
    assert len(reports(ran)) == 1


def test_a_cell_that_clears_its_output_still_gets_its_report(kernel):
    ran = kernel.run(
        "%%memtrace\nfrom IPython.display import clear_output\n"
        "kept = torch.zeros(8, device='cuda'); clear_output()"
    )
    after = [m["msg_type"] for m in ran.messages if m["msg_type"].endswith(("_data", "_output"))]
    assert after == ["display_data", "clear_output", "display_data"]


def test_a_traced_cell_that_used_no_card_leaves_no_line_that_says_it_runs(kernel):
    kernel.run("kept = None")
    ran = kernel.run("%%memtrace nothing\n1 +")
    assert [report["text/plain"] for report in reports(ran)] == [
        "nothing has no report: its code never ran."
    ]
    tracer = "from nbmem.frontends.notebook import tracer"
    kernel.run(
        f"{tracer}\nasked, tracer.why_no_report = tracer.why_no_report, lambda *_: 'No card.'"
    )
    ran = kernel.run("%%memtrace nothing\nno_such_name")
    kernel.run("tracer.why_no_report = asked")
    assert [r["text/plain"] for r in reports(ran)] == ["nothing has no report: No card."]
    assert not ran.outputs("stream")


def test_the_page_can_have_the_next_cell_traced(kernel):
    page = kernel.page()
    assert isinstance(page.ask(TraceNext(id="t", on=True)), Done)
    assert page.ask(GetState(id="s")).tracing_next
    ran = kernel.run(f"kept = torch.zeros(8, device='cuda')\n{PRINT}")
    assert ran.pushed(LastReport)[0].peak.allocated == int(ran.text())
    assert not page.ask(GetState(id="s")).tracing_next
    kernel.run("kept = None")  # may bring the rest of the traced one's report
    assert not kernel.run("kept = None").pushed(LastReport)


def test_a_cell_is_known_by_the_front_ends_id(kernel):
    session = kernel.client.session
    content = {"code": FILL, "silent": False, "store_history": True, "stop_on_error": False}
    message = session.msg("execute_request", content, metadata={"cellId": "abc-123"})
    kernel.client.shell_channel.send(message)
    ran = kernel.until_idle(message["header"]["msg_id"])
    assert {m.cell.cell_id for m in ran.pushed((CellBegun, CellEnded))} == {"abc-123"}


def test_a_forked_child_says_nothing_and_the_parent_goes_on(kernel):
    ran = kernel.run(
        "import os\nif os.fork() == 0:\n    get_ipython().events.trigger('post_run_cell', None)\n"
        f"    os._exit(0)\nos.wait()\n{FILL}"
    )
    assert len(ran.pushed(CellEnded)) == 1
    assert len(ran.samples()) >= 3


def test_a_fault_in_the_readings_is_one_note_and_a_reload_begins_again(kernel):
    kernel.run(
        "import nbmem.frontends.sidebar.card_reader as cards\nread = cards.CardReader.read\n"
        "def broken(self, recorder=None):\n    raise ValueError('a broken counter')\n"
        "cards.CardReader.read = broken"
    )
    ran = kernel.run(FILL)
    assert "nbmem" not in "".join(m["content"].get("text", "") for m in ran.messages)
    for message in (*kernel.late, *ran.messages):
        assert message["msg_type"] != "error"
    (note,) = kernel.page().ask(GetState(id="n")).notes
    assert "ValueError('a broken counter')" in note
    assert "%reload_ext nbmem" in note
    assert kernel.run(FILL).pushes == []
    ran = kernel.run("cards.CardReader.read = read\n%reload_ext nbmem")
    assert [type(push.message) for push in ran.pushes] == [Loaded, Sample, CellEnded]
    assert kernel.run(FILL).samples()


def test_unloading_undoes_it_and_loading_again_remembers_nothing(kernel):
    kernel.run(FILL)
    page = kernel.page()
    ran = kernel.run("%unload_ext nbmem")
    assert isinstance(ran.pushes[-1].message, Unloaded)
    assert kernel.comms() == {}
    ran = kernel.run("import threading; print([t.name for t in threading.enumerate()])")
    assert "nbmem" not in ran.text()
    assert ran.pushes == []
    del page
    ran = kernel.run(LOAD)  # nobody knew that this cell began, and the card is shown
    assert kernel.page().ask(GetState(id="s")).cells == ()
    (sample,) = ran.pushed(Sample)
    assert (sample.cards[0].total, sample.cards[0].virtual) == (23_034 << 20, True)
    (ended,) = ran.pushed(CellEnded)
    assert ended.delta is None


def test_a_tips_button_frees_and_the_tip_says_what_it_brought(kernel):
    kernel.run("kept = [torch.zeros(1 << 24, device='cuda') for _ in range(8)]; kept = None")
    page = kernel.page(kernel.subshell())
    done = page.ask(RunCommand(id="f", name="free", arguments=("cache",)))
    assert isinstance(done, Done)
    assert done.sentence.startswith("the cache: ")
    assert " freed." in done.sentence
    ran = kernel.run("print(torch.cuda.memory_reserved())")
    assert ran.outputs("display_data") == [], "nothing was shown in the notebook"
    assert int(ran.text()) < 8 << 26


def test_a_rule_is_muted_for_every_report_from_now_on(kernel):
    kernel.run("import os, tempfile; os.environ['XDG_CONFIG_HOME'] = tempfile.mkdtemp()")
    page = kernel.page()
    assert isinstance(page.ask(MuteRule(id="m", rule="no such", muted=True)), Refused)
    done = page.ask(MuteRule(id="m", rule="card_empty", muted=True))
    assert page.ask(GetState(id="s")).muted == ("card_empty",), done
    page.ask(MuteRule(id="m", rule="card_empty", muted=False))
    assert page.ask(GetState(id="s")).muted == ()
