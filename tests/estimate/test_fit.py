"""Largest value that fits, against brute force and hand-counted parts."""

from types import SimpleNamespace

import pytest
import torch

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.core.units import MIB
from nbmem.estimates.card_choice import figures_of
from nbmem.estimates.programs import programs
from nbmem.estimates.questions import fit_sentences
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.report.estimate_results import CardFigures
from nbmem.views.exports.estimates import fit_json
from nbmem.views.fit import formula, render_html, render_text
from tests.estimate.small_cards import small_card

WIDE = 4096
TRAIN = """
import torch
from torch import nn
batch = 256
model = nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(2):
    x = torch.randn(batch, 4096, device="cuda")
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "train.py"
    path.write_text(TRAIN)
    return str(path)


@pytest.fixture(scope="module")
def found(here, script):
    return here.fit(
        programs.script(script, vary="batch"), small_card(1500), margin=0.0, step=16,
        between=(16, 16384),
    )  # fmt: skip


def test_the_fit_equals_brute_force(found, script):
    program = programs.script(script, vary="batch")
    verdicts = {
        value: probe(program, Request(card=small_card(1500), value=value)).probe.fits
        for end in (found.safe, found.best)
        for value in range(end - 16, end + 48, 16)
    }
    assert all(fits for value, fits in verdicts.items() if value <= found.safe)
    assert not verdicts[found.safe + 16]
    assert max(value for value, fits in verdicts.items() if fits) == found.best
    assert (found.safe, found.best, found.limit) == (10880, 12800, 12816)


def test_the_luck_is_said_and_what_ends_it(found):
    first, luck, ends, checked, *_ = found.sentences
    assert first == (
        "batch up to 10,880 always fits on a Tesla T4; 10,896 to 12,800 depends on how the "
        "allocator's segments fall, from 12,816 on it never fits."
    )
    assert luck.startswith("With batch = 10,896 a request of 170.2 MiB finds ")
    assert ends.startswith("With expandable_segments:True: up to 1")
    assert checked.endswith("requests of these runs in the simulated allocator.")


def test_the_parts_are_those_by_hand(found):
    parts = {part.name: part for part in found.parts}
    weights = 2 * WIDE * WIDE * 4 + WIDE * 4
    sample = WIDE * 4
    assert round(parts["weights"].fixed) == weights
    assert parts["weights"].each == pytest.approx(0, abs=1e-3)
    # Adam: two states for each weight, and its step counts stay on the CPU.
    assert round(parts["optimizer state"].fixed) == 2 * weights
    assert parts["inputs"].each == pytest.approx(sample)
    # The ReLU's result, kept for itself and for the layer after it.
    assert parts["activations"].each == pytest.approx(sample)
    assert found.total.residual < 0.02 * found.total.at(found.best)
    at = found.safe
    assert sum(part.at(at) for part in found.parts) == pytest.approx(found.total.at(at), rel=1e-6)


def test_the_margin_is_kept_free(here, script):
    kept = here.fit(
        programs.script(script, vary="batch"), small_card(1500), margin=0.1, step=16,
        between=(16, 16384),
    )  # fmt: skip
    top = next(p for p in kept.probes if p.value == kept.best)
    assert kept.card.margin == 150 * MIB
    assert top.process <= 1350 * MIB
    assert "150.0 MiB (10% of the card) are kept free" in " ".join(kept.sentences)


def test_what_only_the_margin_refuses_does_not_run_out_of_memory():
    card = CardFigures(name="Tesla T4", total=1000 * MIB, margin=100 * MIB, driver=0)
    search = SimpleNamespace(limit=38, flat=False)
    fits = SimpleNamespace(value=37, fits=True, process=890 * MIB)
    beyond = SimpleNamespace(value=38, fits=False, wanted=950 * MIB, failure=None)
    verdict = fit_sentences._verdict("batch", search, [fits, beyond], card)
    assert verdict == (
        "batch = 37 fits on a Tesla T4: 890.0 MiB of 1,000.0 MiB. 38 would take 950.0 MiB, and the "
        "margin leaves 900.0 MiB."
    )
    beyond.wanted = 1010 * MIB
    told = fit_sentences._verdict("batch", search, [fits, beyond], card)
    assert told.endswith("38 runs out of memory; with an endless card it would take 1,010.0 MiB.")


def test_a_cards_two_totals_are_told_apart():
    card = virtual.find_card("T4")
    told = figures_of(card, 0)
    assert told.total + told.driver == card.nvml_total
    assert told.share == "CUDA gives out 14.56 GiB of its 15.00 GiB; the driver keeps the rest."
    assert not figures_of(small_card(1500), 0).share


def test_what_never_fits_and_what_always_fits_is_said(here, script):
    program = programs.script(script, vary="batch")
    never = here.fit(program, small_card(700), margin=0.0)
    assert never.best is None
    assert never.sentences[0].startswith("It never fits on a Tesla T4: with batch = 1 it lacks ")
    always = here.fit(program, "H100", between=(1, 512))
    assert (always.best, always.limit) == (512, None)
    assert "for every value of batch up to 512" in always.sentences[0]


def test_another_reason_than_memory_is_told_apart(here, tmp_path):
    path = tmp_path / "split.py"
    path.write_text(TRAIN.replace("step in range(2):", "step in range(2):\n    assert batch < 300"))
    found = here.fit(programs.script(str(path), vary="batch"), small_card(3000))
    assert found.best == 299
    assert "300 fails for another reason than memory" in found.sentences[0]
    assert "AssertionError (line 8)" in " ".join(found.sentences)


def test_a_program_that_never_runs_is_an_error(here, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("batch = 4\nimport torch\ntorch.zeros(batch, device='cuda').nothing()\n")
    with pytest.raises(UsageError, match=r"fails as it is, with batch = 4.*nothing.*line 3"):
        here.fit(programs.script(str(path), vary="batch"), "T4")


IN_A_THREAD = """
import threading
thread = threading.Thread(target=lambda: torch.zeros(batch << 20, device="cuda"))
thread.start()
thread.join()
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_out_of_memory_in_a_thread_is_out_of_memory(here):
    program = programs.cell(f"batch = 2\n{IN_A_THREAD}", {"torch": torch}, vary="batch")
    card = small_card(512)
    room = card.total_bytes - card.context_bytes
    assert here.fit(program, card, margin=0).best == room // (4 << 20)


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("x = torch.ones(batch)", "puts no tensor on a card, so there is nothing to estimate"),
        ("import sys; sys.exit('bad data')", r"it ended itself with sys.exit\('bad data'\)"),
        ("programs.refuse_input('Name? ')", r"input\('Name\? '\) has nobody to ask"),
    ],
)
def test_what_cannot_be_estimated_is_a_sentence(here, cell, sentence):
    names = {"torch": torch, "programs": programs}
    with pytest.raises(UsageError, match=sentence):
        here.fit(programs.cell(f"batch = 2\n{cell}", names, vary="batch"), "T4")


def test_a_curve_that_falls_is_said(here):
    def step(batch):
        import torch

        rows = 1 << 20 if batch < 8 else 1 << 10
        return torch.zeros(rows, batch, device="cuda")

    found = here.fit(step, "T4", start=2, between=(1, 64))
    assert any(text.startswith("It is not monotone:") for text in found.sentences)


def test_a_variable_without_effect_is_said(here):
    def step(batch):
        import torch

        return torch.zeros(1 << 20, device="cuda"), batch

    found = here.fit(step, "T4", start=2)
    assert found.sentences[0].startswith("batch changes nothing: ")


def test_a_variable_without_effect_from_some_value_on_is_said(here):
    def step(batch):
        import torch

        data = torch.zeros(64, 1 << 18)
        return [data[i : i + batch].cuda() for i in range(0, 64, batch)]

    found = here.fit(step, "T4", start=4)
    assert found.sentences[0].startswith(
        "It fits on a Tesla T4 for every batch: from 64 on nothing changes ("
    )
    assert found.sentences[0].endswith("): the data has 64 rows.")


def test_the_views_show_the_same_figures(found):
    text, page = render_text(found), render_html(found)
    assert f"batch up to {found.safe:,} always fits on a Tesla T4" in text
    assert "by luck" in text
    assert formula(found) in text
    assert "data:image/svg+xml" in page
    assert (fit_json(found)["best"], fit_json(found)["safe"]) == (found.best, found.safe)
    assert fit_json(found)["probes"][0]["value"] == found.probes[0].value


def test_a_search_reads_figures_and_looks_for_no_tips(here, monkeypatch):
    from nbmem.api import common_cards
    from nbmem.report.tips import engine

    def step(batch):
        torch.zeros(batch, 1 << 20, device="cuda")

    def refuse(*_arguments, **_options):
        raise AssertionError

    monkeypatch.setattr(engine, "advise", refuse)
    monkeypatch.setattr(common_cards, "common_cards", refuse)
    found = here.fit(step, small_card(600), between=(4, 1000))
    assert found.best is not None
    assert not any(probe.notes for probe in found.probes)  # a part that fails leaves a note
