"""The explorer under a traced cell, as a person uses it; every figure is compared with Python's."""

from __future__ import annotations

import json

import nbformat
import pytest

from tests.browser.pages import LOAD, picture

TRAIN = """\
%%memtrace --stacks
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
model = torch.nn.Sequential(*[Block() for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for step in range(4):
    x = torch.randn(4096, 512, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    losses.append(loss)
    optimizer.step()
    optimizer.zero_grad()"""
LEDGER = """\
import json
from nbmem.ledger.books import Books
_trace = get_ipython().extension_manager and get_ipython().magics_manager.registry
_trace = _last()
_books = Books(_trace.session)
print(json.dumps([_books.ledger(e).to_json() for e in json.loads('{events}')]))"""
LAST = """\
import gc
from nbmem.api import Trace
def _last():
    return [t for t in gc.get_objects() if isinstance(t, Trace) and t.session is not None][-1]"""
EXPLORER = "[data-testid=nbx-explorer]"
DRAWN = f"{EXPLORER}[data-drawn=true]"


def ledger_of(page):
    """The ledger as the page shows it: bytes by category."""
    return page.locator("[data-testid=nbx-ledger] [data-category]").evaluate_all(
        "rows => Object.fromEntries(rows.map(r => [r.dataset.category, Number(r.dataset.bytes)]))"
    )


def python_ledger(notebook, event, cell):
    """The same from the kernel, without the empty ones."""
    code = (
        "import json; from nbmem.ledger.books import Books\n"
        f"print(json.dumps(Books(_last().session).ledger({event}).to_json()))"
    )
    found = json.loads(notebook.ask(code))
    assert sum(found.values()) > 0, cell
    return {key: count for key, count in found.items() if count}


@pytest.fixture
def traced(notebook, page):
    """A notebook whose training cell has its explorer."""
    notebook.run(0)
    notebook.execute(LAST)
    notebook.run(1)
    page.locator(DRAWN).wait_for()
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-right-area')")
    return notebook


def click_timeline(page, part):
    box = page.get_by_test_id("nbx-timeline").bounding_box()
    page.mouse.click(box["x"] + 72 + part * (box["width"] - 90), box["y"] + 200)


@pytest.mark.cells(LOAD, TRAIN, "1 + 1")
def test_every_part_follows_a_click_and_says_what_python_says(traced, page, pictures):
    explorer = page.locator(EXPLORER)
    timeline = page.get_by_test_id("nbx-timeline")
    top = json.loads(
        traced.ask(
            "import json; r = _last().report()\n"
            "print(json.dumps([r.peak.at.event, r.peak.allocated]))"
        )
    )
    event = int(timeline.get_attribute("data-event"))
    assert event == top[0]
    shown = ledger_of(page)
    assert shown == python_ledger(traced, event, 1)
    active = page.locator("[data-testid=nbx-ledger] [data-sum=active]").get_attribute("data-bytes")
    assert int(active) == top[1]
    picture(page, pictures, "explorer-light", explorer)

    click_timeline(page, 0.12)
    page.wait_for_function(
        "([e]) => document.querySelector('[data-testid=nbx-timeline]').dataset.event !== e",
        arg=[str(event)],
    )
    chosen = int(timeline.get_attribute("data-event"))
    assert chosen != event
    assert ledger_of(page) == python_ledger(traced, chosen, 1)

    page.get_by_test_id("nbx-peak").click()
    first = page.locator("[data-testid=nbx-largest] tbody tr").first
    first.locator("button").click()
    assert first.get_attribute("aria-selected") == "true"
    page.get_by_label("Filter the largest tensors").fill("weight")
    rows = page.locator("[data-testid=nbx-largest] tbody tr")
    assert rows.count() > 0
    assert all("weight" in text for text in rows.all_inner_texts())

    box = timeline.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 200, steps=4)
    page.mouse.up()
    page.get_by_test_id("nbx-where").get_by_text("The selection, events").wait_for()
    page.get_by_role("button", name="clear selection").click()

    timeline.focus()
    page.keyboard.press("Home")
    assert timeline.get_attribute("data-event") == "0"
    page.keyboard.press("p")
    assert timeline.get_attribute("data-event") == str(event)
    assert "allocated" in timeline.get_attribute("aria-valuetext")


@pytest.mark.cells(LOAD, TRAIN, "1 + 1")
def test_a_saved_report_opens_without_a_kernel_and_follows_the_theme(
    traced, page, lab, pictures, context
):
    for tab in ("phases", "pool", "tips", "cells"):
        button = page.locator(f"{EXPLORER} [data-tab={tab}]")
        if button.count():
            button.click()
            panel = f"{EXPLORER} [role=tabpanel][data-drawn=true]:not([hidden])"
            page.locator(panel).wait_for()
            picture(page, pictures, f"explorer-{tab}", page.locator(EXPLORER))
    releasable = page.locator("[data-pool=releasable]").get_attribute("data-bytes")
    held = traced.ask("print(int(Books(_last().session).followed.releasable[-1]))", LEDGER_IMPORT)
    assert releasable == held
    traced.save()
    path = lab.path(traced.name)
    saved = nbformat.read(path, 4)
    (output,) = [o for o in saved.cells[1].outputs if "data" in o]
    assert len(json.dumps(output)) < 160 * 1024
    assert "text/html" in output.data

    traced.execute("import os; os._exit(0)") if False else None
    fresh = context.new_page()
    fresh.goto(f"{lab.url}lab/workspaces/fresh/tree/{traced.name}?reset")
    fresh.evaluate("() => undefined")
    fresh.locator(DRAWN).wait_for()
    assert fresh.get_by_test_id("nbx-timeline").get_attribute("data-event")
    traced.page = fresh
    traced.theme("JupyterLab Dark")
    fresh.locator(f"{EXPLORER}.nbx-mod-dark").wait_for()
    picture(fresh, pictures, "explorer-dark", fresh.locator(EXPLORER))


LEDGER_IMPORT = "from nbmem.ledger.books import Books"


@pytest.mark.cells(
    LOAD,
    TRAIN,
    "w = _last().widget()\nseen = []\nw.observe(lambda c: seen.append((c.name, c.new)), ['moment', 'tensor'])\nw",
)
def test_the_widgets_traits_follow_the_page_and_the_page_the_traits(traced, page):
    traced.run(2)
    widget = page.locator(f".jp-OutputArea-output .widget-subarea {EXPLORER}, .jupyter-widgets {EXPLORER}").first
    widget.wait_for()
    page.wait_for_selector(f".jupyter-widgets {DRAWN}, .widget-subarea {DRAWN}")
    timeline = widget.get_by_test_id("nbx-timeline")
    timeline.focus()
    page.keyboard.press("Home")
    assert traced.until("print(w.moment)", "0")
    widget.locator("[data-testid=nbx-largest] tbody button").first.wait_for(state="detached")
    traced.execute("w.moment = w._source.peak.at.event")
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-testid=nbx-timeline]')].at(-1).dataset.event !== '0'"
    )
    widget.locator("[data-testid=nbx-largest] tbody button").first.click()
    assert traced.until("print(w.life is not None)", "True")
