"""Explanations of out-of-memory errors, with remedies that are tried."""

import gc
import threading
from dataclasses import replace

import pytest

import nbmem
from nbmem import virtual
from nbmem.core.files.session import open_session
from nbmem.core.session.categories import Category
from nbmem.core.session.holders import Holder, HolderKind, held_storages
from nbmem.report.ledger import card_ledger
from nbmem.views.html import render_html
from nbmem.views.text import render_text

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]
MIB = 1 << 20
WIDTH = 4096


def network(layers=20):
    from torch import nn

    blocks = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH, device="cuda"), nn.GELU()) for _ in range(layers)
    ]
    return nn.Sequential(*blocks)


def batch_of(rows):
    import torch

    return torch.randn(rows, WIDTH, device="cuda")


def empty(mib):
    import torch

    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def step(model, rows):
    model(batch_of(rows)).sum().backward()


def out_of_memory(run, *args, names=None):
    """Trace a program that runs out; return explanation and report."""
    import torch

    trace = nbmem.trace("run", stacks=True, namespace=names or {})
    with pytest.raises(torch.OutOfMemoryError), trace:
        run(*args)
    report = trace.report()
    return report.ooms[0], report, trace


def test_the_card_has_the_texts_of_the_explanation_and_the_calls():
    from nbmem.views import oom
    from nbmem.views.mime_bundle import oom_bundle
    from nbmem.views.mime_types import OOM_MIME

    model = network()
    explained, report, _ = out_of_memory(step, model, 1 << 19, names={"model": model})
    card = oom_bundle(report.ooms)[OOM_MIME]
    assert (card["title"], card["reason"]) == (oom.title(explained), explained.reason)
    assert [one["title"] for one in card["remedies"]] == [r.title for r in explained.remedies]
    assert card["command"] == ["free", "traceback"]
    held = {name: size for table in card["tables"] for _, size, name in table["rows"]}
    assert held["free on the card: after torch had given back what it could"] in card["title"]
    assert card["calls"][-1] == explained.at.line
    assert card["calls"][-1].endswith(" in step")


def test_what_was_asked_for_by_which_line_and_layer_and_what_there_was():
    model = network()
    oom, report, _ = out_of_memory(step, model, 30_000, names={"model": model})
    size = 30_000 * WIDTH * 4
    assert (oom.asked, oom.wanted) == (size, -(-size // (2 * MIB)) * 2 * MIB)
    assert oom.layer == "model.13.1 (GELU)"
    assert (oom.at.phase, oom.at.step) == ("forward", 0)
    assert oom.at.line.startswith("test_explained.py:")
    assert oom.at.line.endswith(" in step")
    assert not oom.caught
    assert oom.free < oom.wanted
    assert oom.largest < size
    assert oom.pieces == oom.ledger[Category.CACHED_STUCK] - _small_pieces(oom)
    assert oom.reason.startswith("Too little memory: 470.0 MiB were needed from the card")
    assert report.error.startswith("OutOfMemoryError: CUDA out of memory.")


def _small_pieces(oom):
    """What is free in the small pool cannot serve a large request."""
    return oom.reserved - oom.allocated - oom.pieces


@pytest.mark.usefixtures("named_graphs")
def test_the_ledger_of_that_moment_is_the_card_and_its_free_bytes_are_the_drivers():
    model = network()
    oom, _, _ = out_of_memory(step, model, 30_000, names={"model": model})
    oom.ledger.check(allocated=oom.allocated, reserved=oom.reserved)
    assert oom.ledger[Category.FREE] == oom.free
    assert oom.ledger[Category.WEIGHTS] == 20 * (WIDTH * WIDTH + WIDTH) * 4
    assert oom.ledger[Category.ACTIVATIONS] == 27 * 30_000 * WIDTH * 4
    # The failing GELU has not saved its input yet.
    saved, unsaved = (h for h in oom.holders if h.category is Category.ACTIVATIONS)
    assert (saved.name, saved.count) == ("saved by model", 26)
    assert (unsaved.name, unsaved.count) == (None, 1)
    assert saved.requested == 26 * unsaved.requested == 26 * 30_000 * WIDTH * 4
    assert any(held.name == "model" for held in oom.holders)


def test_what_nothing_in_python_holds_keeps_its_own_name(monkeypatch):
    nothing = (Holder(HolderKind.UNSEEN, "nothing", "nothing"),)

    def unseen(session, device):
        return [replace(held, holders=nothing) for held in held_storages(session, device)]

    monkeypatch.setattr(card_ledger, "held_storages", unseen)
    model = network()
    oom, _, _ = out_of_memory(step, model, 30_000, names={"model": model})
    names = {held.name for held in oom.holders}
    assert {"model", "saved by model"} <= names
    assert "nothing" not in names


def test_a_named_remedy_is_said_with_its_bytes_and_is_enough():
    model = network()
    names = {"model": model}
    names["checkpoint"] = {name: w.clone() for name, w in model.state_dict().items()}

    def load():
        return empty(12_800).numel()

    oom, _, _ = out_of_memory(load, names=names)
    named = next(one for one in oom.remedies if one.rule == "held_by_name")
    size = sum(weight.numel() * 4 for weight in names["checkpoint"].values())
    assert (named.low, named.high, named.ground) == (size, size, "simulated")
    assert named.command.arguments == ("checkpoint",)
    del names["checkpoint"]
    assert load() == 12_800 * MIB


def test_a_smaller_batch_is_estimated_and_fits():
    import torch

    model = network()
    oom, _, _ = out_of_memory(step, model, 30_000, names={"model": model})
    smaller = next(one for one in oom.remedies if one.rule == "batch_size")
    assert smaller.ground == "estimated"
    rows = int(smaller.title.split()[5])
    assert 15_000 <= rows < 22_000
    gc.collect()  # the exception, which pytest keeps in a cycle
    torch.cuda.empty_cache()
    step(model, rows)  # forward, backward and gradients


def test_fragmentation_is_said_and_expandable_segments_are_enough():
    def fragment():
        blocks = [empty(1024) for _ in range(12)]
        blocks.clear()
        kept = [empty(600) for _ in range(12)]  # each leaves 424 MiB of a block that it splits
        return empty(4096).numel(), kept

    oom, _, _ = out_of_memory(fragment)
    assert (oom.pieces, oom.largest) == (12 * 424 * MIB, 424 * MIB)
    assert oom.reason.startswith("Fragmentation: ")
    assert [one.rule for one in oom.remedies] == ["fragmentation"]
    assert "expandable_segments:True" in oom.remedies[0].code
    virtual.deactivate()
    with virtual.activated("T4", conf="expandable_segments:True"):
        assert fragment()[0] == 4096 * MIB


def test_evaluation_with_gradients_is_told_apart():
    model = network().eval()
    oom, _, _ = out_of_memory(lambda: model(batch_of(30_000)), names={"model": model})
    assert "no_grad_missing" in [one.rule for one in oom.remedies]
    import torch

    with torch.inference_mode():
        assert model(batch_of(30_000)).size(0) == 30_000


def test_other_processes_are_counted():
    virtual.deactivate()
    with virtual.activated("T4", other_processes=4 << 30):
        held = empty(1)
        oom, _, _ = out_of_memory(empty, 11 << 10)
        del held
        assert oom.others >= 4 << 30
        assert oom.ledger[Category.OTHER_PROCESSES] == oom.others


def test_backward_names_the_layer_whose_node_ran():
    import torch

    model = network(layers=4)

    def run():
        loss = model(batch_of(8_000)).sum()
        free = torch.cuda.mem_get_info()[0]
        filled = torch.empty(free - 40 * MIB, dtype=torch.uint8, device="cuda")
        loss.backward()
        return filled

    oom, _, _ = out_of_memory(run, names={"model": model})
    assert oom.at.phase == "backward"
    assert oom.operator.endswith("Backward0")
    assert oom.at.line.endswith(" in run")


def test_what_is_caught_is_said_to_be_and_the_rest_of_the_run_is_reported():
    import torch

    model = network()
    with nbmem.trace("search", stacks=True, namespace={"model": model}) as trace:
        for rows in (60_000, 40_000, 30_000, 1_000):
            try:
                step(model, rows)
            except torch.OutOfMemoryError:
                model.zero_grad()
                continue
    report = trace.report()
    assert [one.caught for one in report.ooms] == [True, True, True]
    assert report.ooms[0].at.event > report.ooms[1].at.event
    assert report.ooms[0].ledger[Category.ACTIVATIONS] == 27 * 30_000 * WIDTH * 4
    assert report.ooms[0].command is None
    text = render_text(report)
    assert text.startswith("Peak ")
    assert "An out-of-memory error was caught: 468.8 MiB asked for, " in text
    assert "More out-of-memory errors were caught" in text


def test_in_a_thread_its_name_is_said():
    import torch

    def work():
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(20 << 30, dtype=torch.uint8, device="cuda")

    with nbmem.trace("threads") as trace:
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()
    assert [one.thread for one in trace.report().ooms] == ["loader"]


def test_raised_again_as_something_else_it_is_still_what_ended_the_run():
    import torch

    def run():
        try:
            torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as err:
            raise ValueError("too big") from err

    with pytest.raises(ValueError, match="too big"), nbmem.trace("chained") as trace:
        run()
    report = trace.report()
    assert not report.ooms[0].caught
    assert report.error.startswith("ValueError: too big (from OutOfMemoryError: CUDA out of memory")


def test_a_saved_explanation_is_equal_and_so_are_text_and_html(tmp_path):
    model = network()
    oom, report, trace = out_of_memory(step, model, 30_000, names={"model": model})
    session = open_session(trace.save(tmp_path / "oom.nbmem"))
    assert session.refusals == trace.session.refusals
    again = nbmem.open(tmp_path / "oom.nbmem").report().ooms[0]
    assert again == oom
    text, html = render_text(report), render_html(report)
    assert text.startswith("Ran out of memory: 468.8 MiB asked for, ")
    for words in ("model.13.1 (GELU)", "Too little memory", "What to do, the best first"):
        assert words in text
        assert words in html


def test_the_observer_and_the_report_hold_nothing():
    import torch

    model = network()
    before = torch.cuda.memory_allocated()
    oom, report, trace = out_of_memory(step, model, 30_000, names={"model": model})
    gc.collect()
    kept = torch.cuda.memory_allocated() - before
    assert kept <= 20 * MIB  # cuBLAS keeps its workspace
    assert oom.left is None or oom.left >= 0
    del report, trace
