"""The explorer under a traced cell, as a person uses it; figures are compared with Python's."""

from __future__ import annotations

import json

import pytest

import nbmem
from tests.browser.pages import LOAD, picture

TRAIN = """\
%%memtrace --stacks --save run.nbmem
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
WIDGET = """\
import ipywidgets, nbmem
w = nbmem.open("run.nbmem").widget()
said = ipywidgets.Label("nothing yet")
w.observe(
    lambda change: setattr(said, "value", f"{change.name} is {change.new}"),
    ["moment", "span", "tensor"],
)
ipywidgets.VBox([said, w])"""
EXPLORER = "[data-testid=nbx-explorer]"
DRAWN = f"{EXPLORER}[data-drawn=true]"
LARGEST = "[data-testid=nbx-largest] tbody tr"
MOST = 160 * 1024
"""Characters of JSON that a report may add to a notebook."""


def books_of(server):
    """What Python reads in the recording that the cell saved."""
    from nbmem.ledger.books import Books

    trace = nbmem.open(server._notebooks / "run.nbmem")
    return Books(trace.session), trace.report()


def ledger_of(page):
    """The ledger as the page shows it: bytes by category, the empty ones left out."""
    shown = page.locator("[data-testid=nbx-ledger] [data-category]").evaluate_all(
        "rows => rows.map(row => [row.dataset.category, Number(row.dataset.bytes)])"
    )
    return dict(shown)


def held_at(books, event):
    return {key: count for key, count in books.ledger(event).to_json().items() if count}


def event_of(page):
    return int(page.get_by_test_id("nbx-timeline").get_attribute("data-event"))


def shown_whole(page, folder, name):
    """A picture of the explorer in a window that is high enough for it, and in a narrow one."""
    if folder is None:
        return
    usual = page.viewport_size
    for width, suffix in ((620, "-narrow"), (1344, "")):
        page.set_viewport_size({"width": width, "height": 2200})
        page.locator(EXPLORER).scroll_into_view_if_needed()
        picture(page, folder, name + suffix, page.locator(EXPLORER))
    page.set_viewport_size(usual)


@pytest.fixture
def traced(notebook, page):
    """A notebook whose training cell has its explorer, without the panel beside it."""
    notebook.command("application:toggle-right-area")
    notebook.command("application:toggle-left-area")
    notebook.run(0)
    notebook.run(1)
    page.locator(DRAWN).wait_for()
    return notebook


@pytest.mark.cells(LOAD, TRAIN)
def test_every_part_follows_and_says_what_python_says(traced, page, lab, pictures):
    books, report = books_of(lab)
    peak = report.peak.at.event
    assert event_of(page) == peak
    assert ledger_of(page) == held_at(books, peak)
    active = page.locator("[data-testid=nbx-ledger] [data-sum=active]")
    assert int(active.get_attribute("data-bytes")) == report.peak.allocated
    page.get_by_role("button", name="events", exact=True).click()
    shown_whole(page, pictures, "explorer-light")
    traced.theme("JupyterLab Dark")
    page.locator(f"{EXPLORER}.nbx-mod-dark").wait_for()
    shown_whole(page, pictures, "explorer-dark")
    traced.theme("JupyterLab Light")
    page.locator(f"{EXPLORER}:not(.nbx-mod-dark)").wait_for()

    page.get_by_test_id("nbx-timeline").click(position={"x": 240, "y": 220})
    page.wait_for_function(
        "([one, event]) => document.querySelector(one).dataset.event !== event",
        arg=["[data-testid=nbx-timeline]", str(peak)],
    )
    moved = event_of(page)
    box = page.get_by_test_id("nbx-timeline").bounding_box()
    assert moved != peak
    assert ledger_of(page) == held_at(books, moved)
    assert page.locator(LARGEST).count() <= len(books.live(moved))

    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 620, box["y"] + 200, steps=5)
    page.mouse.up()
    page.get_by_test_id("nbx-where").get_by_text("The selection, events").wait_for()
    inside = event_of(page)
    assert ledger_of(page).keys() >= held_at(books, inside).keys()
    page.get_by_role("button", name="clear selection").click()

    page.get_by_test_id("nbx-timeline").focus()
    page.keyboard.press("Home")
    assert event_of(page) == 0
    page.keyboard.press("p")
    assert event_of(page) == peak
    spoken = page.get_by_test_id("nbx-timeline").get_attribute("aria-valuetext")
    assert "allocated" in spoken
    find_a_tensor(page, report)
    insert_a_tip(traced, page)


def find_a_tensor(page, report):
    """In the boxes and in the table."""
    largest = max(
        (x for x in report.details.lives if x.born < report.peak.at.event <= x.freed),
        key=lambda life: life.requested,
    )
    first = page.locator(LARGEST).first
    assert f"{largest.requested:,} bytes" in first.locator("td").first.get_attribute("title")
    boxes = page.locator(".nbx-mod-holders")
    box = boxes.bounding_box()
    boxes.scroll_into_view_if_needed()
    boxes.click(position={"x": 40, "y": box["height"] * 5 / 6})
    page.locator(f"{LARGEST}[aria-selected=true]").wait_for()
    boxes.click(position={"x": 40, "y": box["height"] / 6})
    page.get_by_label("Holders: where the picture is").get_by_role(
        "button", name="weights"
    ).wait_for()
    page.get_by_label("Filter the largest tensors").fill("up.weight")
    found = page.locator(LARGEST).all_inner_texts()
    assert found
    assert all("up.weight" in text for text in found)


def insert_a_tip(traced, page):
    """Its code comes into a cell below, and is not run."""
    page.locator(f"{EXPLORER} [data-tab=tips]").click()
    tip = page.locator("[data-testid=nbx-tips] li").filter(has_text="Insert the code below").first
    code = tip.locator("pre").inner_text()
    tip.get_by_role("button", name="Insert the code below").click()
    assert traced.sources()[2] == code


@pytest.mark.cells(LOAD, TRAIN)
def test_it_is_small_and_opens_again_without_a_kernel(traced, page, lab, context, pictures):
    for tab in ("phases", "pool", "cells"):
        page.locator(f"{EXPLORER} [data-tab={tab}]").click()
        page.locator(f"{EXPLORER} [role=tabpanel][data-drawn=true]:not([hidden])").wait_for()
        shown_whole(page, pictures, f"explorer-{tab}")
    books, report = books_of(lab)
    page.locator(f"{EXPLORER} [data-tab=pool]").click()
    releasable = page.locator("[data-pool=releasable]").get_attribute("data-bytes")
    assert int(releasable) == books.followed.releasable[-1]
    traced.save()
    outputs = lab.saved(traced.name).cells[1].outputs
    (data,) = [output.data for output in outputs if "data" in output]
    assert {"text/plain", "text/html"} < set(data)
    assert len(json.dumps(data)) < MOST

    fresh = context.new_page()
    asked = []
    fresh.on("request", lambda request: asked.append(request.url))
    fresh.route("**/api/kernels**", lambda route: route.abort())
    fresh.route("**/api/sessions**", lambda route: route.abort())
    traced.page = fresh
    traced.open(wait=False)
    fresh.locator(DRAWN).wait_for()
    assert event_of(fresh) == report.peak.at.event
    assert ledger_of(fresh) == held_at(books, report.peak.at.event)
    assert all(url.startswith((lab.url, "data:", "blob:")) for url in asked)
    convert(lab.saved(traced.name), lab, context)


def convert(saved, lab, context):
    """A page made by nbconvert shows the static picture and asks nobody for anything."""
    exporter = pytest.importorskip("nbconvert").HTMLExporter(mathjax_url="", require_js_url="")
    html, _ = exporter.from_notebook_node(saved)
    path = lab._notebooks / "page.html"
    path.write_text(html)
    alone = context.new_page()
    asked = []
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto(path.as_uri())
    assert alone.locator("img[alt^='Memory over']").evaluate("image => image.naturalWidth") > 0
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)


@pytest.mark.cells(LOAD, TRAIN, WIDGET)
def test_the_widgets_traits_follow_the_page_and_the_page_follows_them(traced, page, lab):
    pytest.importorskip("anywidget")
    _, report = books_of(lab)
    traced.run(2)
    label = page.locator(".widget-label")
    label.wait_for()
    widget = page.locator(EXPLORER).nth(1)
    page.locator(DRAWN).nth(1).wait_for()
    timeline = widget.get_by_test_id("nbx-timeline")
    timeline.focus()
    page.keyboard.press("Home")
    label.get_by_text("moment is 0", exact=True).wait_for()
    traced.execute(f"w.moment = {report.peak.at.event}")
    page.wait_for_function(
        "([all, event]) => document.querySelectorAll(all)[1].dataset.event === event",
        arg=["[data-testid=nbx-timeline]", str(report.peak.at.event)],
    )
    widget.locator(LARGEST).first.locator("button").click()
    label.get_by_text("tensor is ").wait_for()
    chosen = int(label.inner_text().split()[-1])
    name = widget.locator(f"{LARGEST}[aria-selected=true]").get_attribute("data-life")
    assert int(name) == chosen


HOSTILE = """\
import nbmem
evil = "<img src=x onerror=\\"window.pwned=1\\"><script>window.pwned=1</script>$$x$$"
with nbmem.trace(evil) as t:
    with nbmem.phase(evil):
        globals()[evil] = torch.ones(1 << 20, device="cuda")
t"""


@pytest.mark.cells(LOAD, HOSTILE)
def test_markup_in_a_name_is_text(traced, page):
    page.locator(f"{EXPLORER} [data-tab=phases]").click()
    page.locator("[data-testid=nbx-phases]").wait_for()
    assert "<script>" in page.locator("[data-testid=nbx-phases]").inner_text()
    assert page.locator(f"{EXPLORER} :is(script, img)").count() == 0
    assert page.evaluate("() => window.pwned") is None
