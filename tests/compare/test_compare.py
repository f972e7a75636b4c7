"""Comparison of two recordings to the byte, and limits on a peak."""

import asyncio
import re

import pytest

import nbmem
from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.core.runtime.data_size import held_bytes
from nbmem.core.units import format_bytes
from nbmem.frontends.notebook.trace_history import MAX_BYTES, TraceHistory
from nbmem.report.analysis import build_report
from nbmem.report.analysis.peak_limit import over_limit
from nbmem.views.comparison import comparison_json
from tests.recorded_runs import load, session_of

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]
MIB = 1 << 20


def block(mib):
    import torch

    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def trace_of_sizes(name, **tensors):
    """Trace a block in which each name gets so many MiB."""
    names = {}
    with nbmem.trace(name, stacks=True, namespace=names) as trace:
        for key, mib in tensors.items():
            names[key] = block(mib)
    names.clear()  # for what lives on would be in the next one, too
    return trace


def test_what_changed_is_named_and_sorted_by_bytes():
    a, b = trace_of_sizes("a", kept=30, small=2), trace_of_sizes("b", kept=30, small=12, new=100)
    found = nbmem.diff(a, b)
    changes = {(c.kind, c.name): c.change for c in found.comparison.changes}
    assert changes["holder", "new"] == 100 * MIB
    assert changes["holder", "small"] == 10 * MIB
    assert ("holder", "kept") not in changes
    assert changes["category", "user tensors"] == 110 * MIB
    assert [abs(c.change) for c in found.comparison.changes] == sorted(
        (abs(c.change) for c in found.comparison.changes), reverse=True
    )
    assert "  new" in str(found)
    assert "+100.0 MiB" in str(found)
    assert "<table" in found._repr_mimebundle_()["text/html"]


def test_the_tables_fit_a_sidebar_and_long_labels_stand_above_them():
    long = "a_recording_with_a_name_of_sixty_characters_and_no_blank_in_it"
    a, b = trace_of_sizes(long, x=10), trace_of_sizes("b", x=30, **{"y" * 40: 2})
    html = nbmem.diff(a, b)._repr_mimebundle_()["text/html"]
    assert html.count(f"A = {long}") == 1
    tables = re.findall(r"<table.*?</table>", html)
    assert len(tables) >= 3
    for table in tables:
        assert long not in table
        heads = re.search("<thead.*?</thead>", table)[0]
        assert re.findall(r">(\w*)</th>", heads) == ["", "A", "B", "change"]
        for row in re.findall("<tr.*?</tr>", table):
            name, *figures = re.findall(r"<t[hd][^>]*>", row)
            # The name may break anywhere; the figures, which may not, share the line below it.
            assert "overflow-wrap:break-word" in name
            assert "nowrap" not in name
            widths = [
                re.search(r"min-width:(\d+)px.*?padding:2px 0 2px (\d+)px", f) for f in figures
            ]
            assert sum(int(w[1]) + int(w[2]) for w in widths) <= 250 - 2 * 16
            assert all('role="' in cell for cell in (name, *figures))


def test_lines_are_compared_where_both_sides_have_them():
    a, b = trace_of_sizes("a", x=10), trace_of_sizes("b", x=30)
    (line,) = [c for c in nbmem.diff(a, b).comparison.changes if c.kind == "line"]
    assert line.change == 20 * MIB
    with nbmem.trace("no stacks") as c:
        held = block(10)
    found = nbmem.diff(a, c).comparison
    assert not [one for one in found.changes if one.kind == "line"]
    assert "where stacks were taken on both sides" in found.notes[0]
    del held


def test_equal_recordings_say_so():
    a = trace_of_sizes("a", x=10)
    assert "Both sides hold the same" in str(nbmem.diff(a, a))


def test_files_and_steps(tmp_path):
    import torch

    model = torch.nn.Linear(512, 512).cuda()
    kept = []
    names = {"model": model, "kept": kept}
    with nbmem.trace("loop", stacks=True, namespace=names) as trace:
        for _ in range(4):
            model(block(1).float()[: 512 * 512].view(512, 512)).sum().backward()
            kept.append(block(8))
    path = trace.save(tmp_path / "loop.nbmem")
    found = nbmem.diff(path, path, steps=(1, 3))
    changes = {(c.kind, c.name): c.change for c in found.comparison.changes}
    assert changes["holder", "kept"] == 16 * MIB
    assert comparison_json(found.comparison)["a"]["label"] == "loop, step 1"
    with pytest.raises(UsageError, match=r"has no step 9\. It has the steps 0 to 3"):
        nbmem.diff(path, path, steps=(1, 9))


def test_a_limit_names_what_exceeded_it():
    with pytest.raises(AssertionError) as failed, nbmem.assert_peak("100MiB"):
        held = [block(40), block(70)]
    line = failed.value.args[0].splitlines()
    assert line[0].startswith("the block peaked at 110.0 MiB allocated (")
    assert line[0].endswith("10.0 MiB above the limit of 100.0 MiB.")
    assert line[1] == "Held at that moment: 110.0 MiB user tensors."
    assert "110.0 MiB user tensors (local held[...] of test_a_limit_names" in line[2]
    del held


def test_a_limit_that_holds_is_silent_and_what_is_raised_goes_through():
    with nbmem.assert_peak(110 * MIB):
        held = block(110)
    del held
    with pytest.raises(ZeroDivisionError), nbmem.assert_peak(1):
        block(110).size(0) / 0


def test_a_decorated_function_is_named_and_held_to_it_at_every_call():
    @nbmem.assert_peak("50MiB", which="reserved")
    def load(mib):
        return block(mib).numel()

    assert load(30) == 30 * MIB
    with pytest.raises(AssertionError, match=r"^load peaked at 110\.0 MiB reserved"):
        load(80)  # beside the 30 that are cached


def test_a_coroutine_is_watched_while_it_runs():
    @nbmem.assert_peak("50MiB")
    async def load():
        await asyncio.sleep(0)
        return block(60).numel()

    with pytest.raises(AssertionError, match=r"load peaked at 60\.0 MiB allocated"):
        asyncio.run(load())


def test_assertions_nest_in_a_trace_each_with_its_own_peak():
    with nbmem.trace("outer") as outer:
        before = block(200)
        del before
        with nbmem.assert_peak("60MiB"):
            held = block(60)
        too_much = pytest.raises(AssertionError, match=r"peaked at 70\.0 MiB allocated")
        with too_much, nbmem.assert_peak("65MiB"):
            more = block(10)
    assert outer.report().peak.allocated == 200 * MIB
    del held, more


def test_an_unknown_figure_and_an_unknown_limit_are_sentences():
    with pytest.raises(UsageError, match="'swap' is no figure with a peak"):
        nbmem.assert_peak(1, which="swap")
    with pytest.raises(UsageError, match="'lots' is not an amount of memory"):
        nbmem.assert_peak("lots")


def test_without_a_card_an_assertion_does_not_pass_in_silence():
    virtual.deactivate()
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    no_card = pytest.raises(UsageError, match="assert_peak found no card")
    with no_card, nbmem.assert_peak("1GiB"):
        pass


def test_kept_traces_are_bounded_and_found_by_number_and_name(monkeypatch):
    kept = TraceHistory()
    traces = [trace_of_sizes(f"In [{n}]", x=n) for n in (1, 2, 3)]
    each = max(held_bytes(trace.session) for trace in traces)
    assert 0 < each < MAX_BYTES
    monkeypatch.setattr("nbmem.frontends.notebook.trace_history.MAX_BYTES", 2 * each + 500)
    for trace in traces:
        kept.add(trace)
    assert kept.find("1") is None
    assert kept.get("2") is traces[1]
    named = trace_of_sizes("mine", x=4)
    kept.add(named)
    kept.number(named, 7)
    assert kept.get("7") is kept.get("mine") is named
    with pytest.raises(UsageError, match=r"No traced cell '1' is kept.*Kept are: In \[3\], mine"):
        kept.get("1")


def test_of_kept_traces_the_newest_alone_keeps_its_report():
    kept, older, newer = TraceHistory(), trace_of_sizes("older", x=1), trace_of_sizes("newer", x=2)
    kept.add(older)
    first = older.report()
    assert older.report().ledger_at_end is first.ledger_at_end
    kept.add(newer)
    assert older.report().ledger_at_end is not first.ledger_at_end


def test_numbers_of_cells_go_with_their_traces(monkeypatch):
    monkeypatch.setattr("nbmem.frontends.notebook.trace_history.MAX_CELLS", 2)
    kept = TraceHistory()
    for number in (1, 2, 3):
        trace = trace_of_sizes("mine")
        kept.add(trace)
        kept.number(trace, number)
    assert kept.names() == ["mine", "3", "2"]
    assert kept.find("3") is not kept.find("2")
    assert kept.find("1") is None


def test_a_limit_on_the_process_is_held_to_what_the_report_says():
    session = session_of(load("lstm_lm_b32s128_sgd"))
    peak = build_report(session).peak.process
    assert over_limit(session, peak, what="the run", which="process") is None
    output = over_limit(session, peak - 1, what="the run", which="process")
    assert f"the run peaked at {format_bytes(peak)} process" in output
