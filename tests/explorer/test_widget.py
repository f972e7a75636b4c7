"""The widget's traits, without a page."""

import pytest

from nbmem.analysis import build_report
from nbmem.core.errors import UsageError
from nbmem.views.widget import explorer_widget
from tests.recorded import load, session_of

pytest.importorskip("anywidget", reason="anywidget is not installed")
pytest.importorskip("bokeh", reason="Bokeh is not installed")


@pytest.fixture(scope="module")
def report():
    return build_report(session_of(load("cudagraph_mlp_b512_sgd")))


@pytest.fixture
def widget(report):
    try:
        made = explorer_widget(report)
    except UsageError as err:
        pytest.skip(str(err))
    yield made
    made.close()


def test_it_opens_at_the_peak_and_goes_to_the_nearest_moment(widget, report):
    assert widget.moment == report.peak.at.event
    seen = []
    widget.observe(lambda change: seen.append(change.new), "moment")
    widget.moment = 10**9
    assert seen == [report.events] == [widget.moment]


def test_a_tensor_is_one_of_the_report(widget, report):
    import traitlets

    widget.tensor = 3
    assert widget.life == report.details.lives[3]
    with pytest.raises(traitlets.TraitError, match="and no 100000"):
        widget.tensor = 100_000
    widget.tensor = None
    assert widget.life is None


def test_a_span_is_two_events_or_none(widget):
    widget.span = (3, 9)
    widget.span = None
    assert widget.span is None


def test_the_largest_as_a_frame(widget, report):
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame = widget.to_frame()
    assert (frame["bytes"].diff().dropna() <= 0).all()
    live = [x for x in report.details.lives if x.born < widget.moment <= x.freed]
    assert frame["bytes"].sum() == sum(life.requested for life in live)
