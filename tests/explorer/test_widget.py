"""The widget's traits, without a page."""

import numpy as np
import pytest

from nbmem.core.errors import UsageError
from nbmem.report.analysis import card_ledger_of, report_of
from nbmem.views.explorer.output import unpacked
from nbmem.views.widget import explorer_widget
from tests.recorded_runs import load, session_of

pytest.importorskip("anywidget", reason="anywidget is not installed")
pytest.importorskip("bokeh", reason="Bokeh is not installed")


@pytest.fixture(scope="module", params=["cudagraph_mlp_b512_sgd", "resnet50_b32_sgdm"])
def card_ledger(request):
    return card_ledger_of(session_of(load(request.param)))


@pytest.fixture
def widget(card_ledger):
    try:
        made = explorer_widget(report_of(card_ledger), card_ledger)
    except UsageError as err:
        pytest.skip(str(err))
    yield made
    made.close()


def closeup_data(widget):
    """Return the page's data for the moment: categories, events, lifetimes."""
    data = unpacked(widget.closeup["data"])
    events = np.cumsum(data["moments"]["event"]).tolist()
    held = {category: np.cumsum(steps).tolist() for category, steps in data["moments"]["held"]}
    return data, events, held


def test_it_opens_at_the_peak_and_goes_to_any_event(widget, card_ledger):
    assert widget.moment == card_ledger.peak(0, card_ledger.events)
    seen = []
    widget.observe(lambda change: seen.append(change.new), "moment")
    for event in (0, 1, 17, card_ledger.events // 2 + 1):
        widget.moment = event
        data, events, held = closeup_data(widget)
        assert data["pool_event"] == event
        assert events == [event]
        ledger = card_ledger.ledger(event)
        assert {c: sums[0] for c, sums in held.items()} == {
            c: size for c, size in enumerate(ledger.held[:-1]) if size
        }
    widget.moment = 10**9
    assert seen[-1] == card_ledger.events == widget.moment


def test_a_tensor_is_one_of_the_recording(widget, card_ledger):
    import traitlets

    last = len(card_ledger.allocations) - 1
    widget.tensor = last
    assert widget.life.number == last
    assert widget.life.requested == card_ledger.allocations.requested[last]
    numbers = np.cumsum(closeup_data(widget)[0]["lives"]["number"])
    assert last in numbers.tolist()
    with pytest.raises(traitlets.TraitError, match=f"0 to {last}, and no 100000"):
        widget.tensor = 100_000
    widget.tensor = None
    assert widget.life is None


def test_a_span_leads_to_its_peak(widget, card_ledger):
    first, last = card_ledger.events // 3, card_ledger.events // 2
    widget.span = (last, first)
    assert widget.span == (first, last)
    assert widget.moment == card_ledger.peak(first, last)
    assert closeup_data(widget)[1] == sorted({first, widget.moment, last})
    widget.moment = first
    assert widget.span == (first, last)
    widget.span = None
    assert widget.moment == first


def test_a_page_knows_only_times(widget, card_ledger):
    start = card_ledger.session.spans[0].t0_ns
    events = [card_ledger.events // 4, card_ledger.events // 3]
    times = (card_ledger.times(np.array(events)) - start).tolist()
    widget._answer(widget, {"kind": "times", "times": times[:1]}, [])
    assert card_ledger.times(np.array([widget.moment]))[0] == start + times[0]
    assert widget.span is None
    widget._answer(widget, {"kind": "times", "times": times}, [])
    assert (card_ledger.times(np.array(widget.span)) == start + np.array(times)).all()


def test_live_tensors_as_a_data_frame(widget, card_ledger):
    pytest.importorskip("pandas", reason="pandas is not installed")
    for event in (widget.moment, card_ledger.events // 2 + 1):
        widget.moment = event
        frame = widget.to_frame()
        assert (frame["bytes"].diff().dropna() <= 0).all()
        live = card_ledger.live(event)
        assert sorted(frame.index) == live.tolist()
        assert frame["bytes"].sum() == card_ledger.allocations.requested[live].sum()


def test_a_saved_output_has_the_picture_where_no_widget_runs(widget):
    data, _ = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "Ledger" in data["text/html"]
    assert "Ledger" in data["text/plain"]
