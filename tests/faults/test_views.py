"""Faults in a view, a tip or an analysis leave the figures and a note."""

import pytest

import nbmem.api.tracing as nbmem
from nbmem.core.errors import NbmemError
from nbmem.core.runtime.fault_isolation import Faults
from nbmem.report.ledger.fallback_text import counter_lines
from tests.faults import views
from tests.faults.injector import Fault, Target, functions

PARTS = 4
"""The functions in so many tests, for as many workers."""
RARELY = 10
"""One function in so many is tried here; `python -m tests.faults.views` tries all."""


def target(name):
    module = name.rsplit(".", 1)[0]
    return next(one for one in functions(module) if one.name == name)


@pytest.mark.parametrize("part", range(PARTS))
def test_any_function_that_fails_leaves_the_figures_and_a_note(part):
    chosen = views.trials(*views.READING)
    assert len(chosen) > 300
    lost = {
        trial.target.name: why
        for trial in chosen[part :: PARTS * RARELY]
        if (why := views.attempt(trial, Fault(trial.target, views.ERRORS["Exception"])))
    }
    assert not lost


@pytest.mark.parametrize("error", ["MemoryError", "RecursionError", "a broken repr()"])
@pytest.mark.parametrize(
    "name",
    [
        "nbmem.report.analysis.report_builder.card_ledger_of",
        "nbmem.report.analysis.report_builder.report_of",
        "nbmem.report.tips.engine.advise",
        "nbmem.views.mime_bundle.mimebundle",
        "nbmem.views.mime_bundle.text_with",
        "nbmem.views.explorer.data.explorer_data",
        "nbmem.views.markup.element",
        "nbmem.views.text.render_text",
    ],
)
def test_memory_errors_and_endless_recursion_leave_the_figures_and_a_note(name, error):
    trial = views.Trial("loss_accumulation", target(name), beside=False)
    fault = Fault(trial.target, views.ERRORS[error])
    assert views.attempt(trial, fault) is None
    assert fault.hits


def test_without_a_ledger_the_counters_stand():
    lost = {
        trial.target.name: why
        for trial in views.trials(*views.BOOKS)[:: 3 * RARELY]
        if (why := views.attempt(trial, Fault(trial.target, MemoryError), card_ledger=True))
    }
    assert not lost
    found = views.run_without_fault("oom")
    with Fault(target("nbmem.report.ledger.attribution.attribute"), MemoryError):
        text = str(views.trace_of(found.session))
    assert found.counters in text
    assert "The ledger could not be made: MemoryError()" in text


def test_counters_that_were_read_stand_with_the_highest_and_the_last():
    recorded = pytest.importorskip("tests.recorded_runs")
    session = recorded.session_of(recorded.load("cudagraph_mlp_b512_sgd"))
    (trace,) = session.devices
    lines = counter_lines(trace).splitlines()
    assert f"{trace.counter_samples.allocated.max():,}" in lines[1]
    assert f"{trace.counter_samples.reserved[-1]:,}" in lines[2]


def test_without_any_figure_a_sentence_stands():
    broken = Fault(target("nbmem.report.ledger.fallback_text.counter_lines"), ZeroDivisionError)
    session = views.run_without_fault("oom").session
    with Fault(target("nbmem.report.ledger.attribution.attribute"), MemoryError), broken:
        text = str(views.trace_of(session))
    assert "its counters cannot be read, either: ZeroDivisionError()" in text
    assert "%nbmem save" in text


def test_a_chart_costs_the_chart_alone():
    found = views.run_without_fault("loss_accumulation")
    whole, _ = views.show(found)
    with Fault(target("nbmem.views.charts.timeline.timeline"), ZeroDivisionError):
        forms, text = views.show(found)
    assert forms[views.TEXT].startswith(whole[views.TEXT])
    assert "The timeline was left out: ZeroDivisionError()." in forms[views.HTML]
    assert forms[views.HTML].count("<img") == whole[views.HTML].count("<img") - 1
    assert forms.keys() == whole.keys()
    assert text == str(views.trace_of(found.session)), "text has no such chart, and no such note"


def test_parts_that_fail_alike_share_a_note():
    faults = Faults()
    for name in ("The phases", "The tips", "The notes", "The tips"):
        faults.part(name, lambda: 1 // 0, None)
    (note,) = faults.notes
    assert note == (
        "The phases, the tips and the notes were left out: ZeroDivisionError('integer division or "
        "modulo by zero'). The figures are not affected; please report it with the session's file "
        "(%nbmem save)."
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("The phases", "were"),
        ("The history of the cells", "was"),
        ("The picture with its tables", "was"),
        ("The tip ddp_buckets", "was"),
    ],
)
def test_a_note_is_english(name, said):
    faults = Faults()
    faults.leave_out(name, KeyError())
    assert faults.notes[0].startswith(f"{name} {said} left out: KeyError().")


def test_without_phases_the_explorer_stands_without_what_refers_to_them():
    healthy = views.run_without_fault("oom")
    with Fault(target("nbmem.report.analysis.report_builder._phase_rows"), ZeroDivisionError):
        forms, _ = views.show(healthy)
    assert len(forms) == 3
    assert "The phases were left out: ZeroDivisionError()." in forms[views.TEXT]


def test_the_text_of_an_exception_is_cut_and_escaped():
    faults = Faults()

    class LoudError(Exception):
        def __repr__(self):
            return "\x1b[31m" + 1000 * "x"

    faults.leave_out("It", LoudError())
    (note,) = faults.notes
    assert "\x1b" not in note
    assert len(note) < 400


def test_an_interrupt_is_the_users_and_passes():
    trace = views.trace_of(views.run_without_fault("oom").session)
    with (
        Fault(target("nbmem.views.text.render_text"), KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        str(trace)
    assert views.run_without_fault("oom").block in str(trace), "and the session is still there"


def test_what_was_left_out_comes_back_once_it_works():
    trace = views.trace_of(views.run_without_fault("oom").session)
    with Fault(target("nbmem.report.analysis.timeline.timeline"), MemoryError):
        assert "The timeline was left out" in str(trace)
    assert "left out" not in str(trace)


def test_a_view_called_from_python_raises_its_fault():
    report = views.trace_of(views.run_without_fault("oom").session).report()
    from nbmem.views.text import render_text

    with (
        Fault(target("nbmem.views.text.phases_table"), ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        render_text(report)


def test_a_widget_that_fails_says_what_shows_the_report_instead():
    pytest.importorskip("anywidget")
    trace = views.trace_of(views.run_without_fault("oom").session)
    with (
        Fault(target("nbmem.views.widget.explorer_widget"), ZeroDivisionError),
        pytest.raises(NbmemError, match=r"could not be made: ZeroDivisionError\(\)\. The report"),
    ):
        trace.widget()


def test_a_card_that_was_not_used_is_no_fault():
    trace = views.trace_of(views.run_without_fault("oom").session)
    bundle = trace._repr_mimebundle_(device=7)
    assert bundle[views.TEXT].startswith("nbmem: Card 7 was not used")


# --- the injector itself


def gathered(first):
    def inner():
        return first

    yield inner()


class Counter:
    @property
    def figure(self):
        return 1

    @classmethod
    def made(cls):
        return cls()


def test_the_injector_reaches_methods_generators_and_closures():
    here = Target("here", gathered)
    with Fault(here, KeyError) as fault:
        items = gathered(1)
        with pytest.raises(KeyError):
            next(items)
    assert fault.hits == 1
    assert list(gathered(1)) == [1]
    names = {one.name.removeprefix(f"{__name__}."): one for one in functions(__name__)}
    for name, use in (("Counter.figure", lambda: Counter().figure), ("Counter.made", Counter.made)):
        with Fault(names[name], KeyError), pytest.raises(KeyError):
            use()
        assert use()


def test_a_fault_at_a_line_is_met_once_and_the_same_seed_chooses_the_same_line():
    here = Target("here", gathered)
    assert {Fault(here, KeyError, at="line", seed=s).line for s in range(20)} == {
        gathered.__code__.co_firstlineno + offset for offset in (1, 2, 4)
    }
    with Fault(here, KeyError, at="line", seed=1) as fault, pytest.raises(KeyError):
        list(gathered(1))
    assert fault.hits == 1
    assert fault.line == Fault(here, KeyError, at="line", seed=1).line
    assert nbmem.running_recorder() is None
