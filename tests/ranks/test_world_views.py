"""A world as a page and as a widget."""

from dataclasses import replace

import pytest

import nbmem
from nbmem.core.errors import UsageError
from nbmem.core.files.rank_folder import session_name
from nbmem.core.files.session import save_session
from nbmem.core.units import format_bytes
from nbmem.views.charts import small_multiples
from nbmem.views.exports import world_page
from nbmem.views.world import render_world_html
from tests.ranks.test_rank_folder import journal, rank, write
from tests.recorded_runs import load, session_of

LOW, HIGH = (session_of(load(name)) for name in ("cudagraph_mlp_b512_sgd", "lstm_lm_b32s128_sgd"))


def alternating(folder, count):
    """Make a world in which adjacent ranks always differ."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        one = rank(number, count)
        session = replace((LOW, HIGH)[number % 2], rank=one)
        save_session(session, folder / session_name(one))
    return nbmem.open(folder)


def test_a_page_unfolds_each_kind_of_rank(tmp_path):
    write(tmp_path, *map(rank, range(3)))
    one = rank(3)
    save_session(replace(LOW, rank=one), tmp_path / session_name(one))
    page = nbmem.open(tmp_path).to_page()
    assert page.count('<details name="nbmem-rank"') == 2
    assert page.count("application/vnd.nbmem.report+json") == 2
    assert ">rank 0-2: peak " in page
    assert ">rank 3: peak " in page
    assert "Lower peaks" not in page


def test_a_page_of_many_has_those_with_the_highest_peaks_and_names_the_others(tmp_path):
    page = alternating(tmp_path, 2 * world_page.MAX_RANKS - 2).to_page()
    assert page.count('<details name="nbmem-rank"') == world_page.MAX_RANKS
    highest = [
        f">rank {number}: peak " in page for number in range(1, 2 * world_page.MAX_RANKS - 2, 2)
    ]
    assert all(highest)
    assert "not in this page: ranks 2, 4, 6" in page


def test_each_rank_is_drawn_over_its_run_on_one_scale(tmp_path):
    world = alternating(tmp_path, 2).report
    drawn = small_multiples.ranks_over_time([("rank 0", world.rows[0]), ("rank 1", world.rows[1])])
    peaks = [format_bytes(row.allocated) for row in world.rows]
    assert drawn.alt.endswith(f"rank 0: peak {peaks[0]}, rank 1: peak {peaks[1]}")
    assert render_world_html(world).count("What each held over its own run") == 1
    for row, session in zip(world.rows, (LOW, HIGH), strict=True):
        assert int(row.timeline.reserved.max()) == row.reserved
        assert session.name == row.title


def test_ranks_that_train_on_the_cpu_have_no_reserved_bytes(tmp_path):
    (card,) = LOW.devices
    host = replace(LOW, devices=(replace(card, info=replace(card.info, kind="cpu")),))
    write(tmp_path, *map(rank, range(4)), session=host)
    text = str(nbmem.open(tmp_path))
    assert "in tensors of" in text
    assert "reserved" not in text
    assert "Python and the rest" in text
    assert "context and libraries" not in text


def test_ranks_without_a_session_have_no_explorer(tmp_path):
    journal(tmp_path, rank(0, 1, ended=None)).close(remove=False)
    world = nbmem.open(tmp_path)
    assert "<details" not in world.to_page()
    assert small_multiples.ranks_over_time([("rank 0", world.report.rows[0])] * 2) is None
    with pytest.raises(UsageError, match="nothing to explore"):
        world.widget()


def test_the_widget_shows_the_highest_and_then_the_chosen_rank(tmp_path):
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    traitlets = pytest.importorskip("traitlets")
    world = alternating(tmp_path, 3)
    try:
        shown = world.widget()
    except UsageError as err:  # the explorer was not built here
        pytest.skip(str(err))
    assert shown.rank == 1
    before = shown.explorer
    picker, below = shown.children
    assert below is before
    picker.value = 2
    assert shown.rank == 2
    assert shown.explorer.report == world.rank(2).widget().report != before.report
    assert before.comm is None  # closed: a page has one explorer at a time
    with pytest.raises(traitlets.TraitError, match="no session of a rank 7"):
        shown.rank = 7
    (tmp_path / session_name(rank(0, 3))).unlink()
    shown.rank = 0
    assert shown.explorer is None
    assert "rank-0-of-3" in shown.children[1].value
    shown.close()
