"""The explorer under a traced cell, compared with figures of Python."""

import json
import re

import pytest

import nbmem
from nbmem.report.analysis.lifetimes import lifetime_of
from tests.browser.pages import KERNEL, LOAD, expect, expect_read, picture

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
    optimizer.zero_grad()
checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
loaded = model.load_state_dict(checkpoint)"""
WIDGET = """\
import ipywidgets, nbmem
w = nbmem.open("run.nbmem").widget()
slider = ipywidgets.IntSlider(value=w.moment, max=100_000, description="event")
tensors = w.to_frame()
choice = ipywidgets.Dropdown(options=[("none", None), *zip(tensors["name"], tensors.index)])
said = ipywidgets.Label("nothing yet")
ipywidgets.jslink((slider, "value"), (w, "moment"))
ipywidgets.link((choice, "value"), (w, "tensor"))
w.observe(
    lambda _: setattr(said, "value", f"moment {w.moment}, span {w.span}, tensor {w.tensor}"),
    ["moment", "span", "tensor"],
)
ipywidgets.HBox([ipywidgets.VBox([slider, choice, said]), w])"""
EXPLORER = "[data-testid=nbx-explorer]"
DRAWN = f"{EXPLORER}[data-drawn=true]"
LARGEST = "[data-testid=nbx-largest] tbody tr"
REPORT = "[data-testid=nbx-report]"
TENSOR = "[data-testid=nbx-tensor]"
MAX_JSON_CHARACTERS = 160 * 1024
"""Characters of JSON that a report may add to a notebook."""


def explore(page):
    """Open the explorer of the first report, and wait until it is drawn.

    By then the kernel has looked at the rest, and the report has been renewed.
    """
    page.evaluate(f"() => {KERNEL}.requestExecute({{code: 'None', store_history: false}}).done")
    open_explorer(page)


def open_explorer(page):
    """Open the explorer of the first report, whatever is still looked at."""
    page.get_by_role("button", name="Explore", exact=True).first.click()
    page.locator(DRAWN).first.wait_for()


def card_ledger_of(server):
    """Return Python's ledger of the recording that the cell saved."""
    from nbmem.report.ledger.card_ledger import CardLedger

    trace = nbmem.open(server._notebooks / "run.nbmem")
    return CardLedger(trace.session), trace.report()


def ledger_of(page):
    """Read the page's ledger: bytes by category, without empty ones."""
    shown = page.locator("[data-testid=nbx-ledger] [data-category]").evaluate_all(
        "rows => rows.map(row => [row.dataset.category, Number(row.dataset.bytes)])"
    )
    return dict(shown)


def pool_of(page):
    """Read the page's pool: bytes in use, releasable, stuck and reserved."""
    rows = page.locator("[data-testid=nbx-pool] [data-pool]")
    return rows.evaluate_all("rows => rows.map(row => Number(row.dataset.bytes))")


def pool_at(card_ledger, event):
    used, releasable = int(card_ledger.active[event]), int(card_ledger.releasable[event])
    reserved = int(card_ledger.reserved[event])
    return [used, releasable, reserved - used - releasable, reserved]


def held_at(card_ledger, event):
    return {key: count for key, count in card_ledger.ledger(event).to_json().items() if count}


def event_of(page):
    timeline = page.locator("[data-testid=nbx-timeline][data-event]")  # drawn, and moved there
    return int(timeline.get_attribute("data-event"))


def shown_whole(page, folder, name):
    """Take pictures of the explorer in a tall and in a narrow window."""
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
    explore(page)
    return notebook


@pytest.mark.cells(LOAD, TRAIN)
def test_every_part_follows_the_moment_and_equals_pythons_figures(traced, page, lab, pictures):
    card_ledger, report = card_ledger_of(lab)
    peak = report.peak.at.event
    expect_read(page, event_of, peak)
    expect_read(page, ledger_of, held_at(card_ledger, peak))
    active = page.locator("[data-testid=nbx-ledger] [data-sum=active]")
    expect(active).to_have_attribute("data-bytes", str(report.peak.allocated))
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
    expect_read(page, ledger_of, held_at(card_ledger, moved))
    assert page.locator(LARGEST).count() <= len(card_ledger.live(moved))

    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 620, box["y"] + 200, steps=5)
    page.mouse.up()
    page.get_by_test_id("nbx-where").get_by_text("The selection, events").wait_for()
    inside = event_of(page)
    assert ledger_of(page).keys() >= held_at(card_ledger, inside).keys()
    page.get_by_role("button", name="clear selection").click()

    page.get_by_test_id("nbx-timeline").focus()
    page.keyboard.press("Home")
    expect_read(page, event_of, 0)
    page.keyboard.press("p")
    expect_read(page, event_of, peak)
    spoken = page.get_by_test_id("nbx-timeline").get_attribute("aria-valuetext")
    assert "allocated" in spoken
    press_keys_of_the_notebook(traced, page)
    find_a_tensor(page, report)
    follow_a_tensor(traced, page, card_ledger)
    insert_a_tip(traced, page)
    look_at_lines(traced, page, report)


def press_keys_of_the_notebook(traced, page):
    """Check that the explorer handles keys and has few tab stops."""
    before = traced.sources()
    for place in (page.get_by_test_id("nbx-timeline"), page.locator(".nbx-Verdict")):
        place.click(position={"x": 100, "y": 10})
        for key in "xddabymz":
            page.keyboard.press(key)
    assert traced.sources() == before
    stops = page.locator(REPORT).evaluate(
        """report => [...report.querySelectorAll('button, input, summary, [tabindex]')]
            .filter(one => one.tabIndex >= 0 && one.checkVisibility()).length"""
    )
    assert stops <= 12
    page.get_by_test_id("nbx-timeline").focus()
    page.keyboard.press("Home")
    page.keyboard.press("PageUp")
    assert event_of(page) > 0
    page.keyboard.press("PageDown")
    expect_read(page, event_of, 0)
    page.keyboard.press("p")
    page.get_by_role("button", name="time", exact=True).focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert page.evaluate("() => document.activeElement.textContent") == "time"


def follow_a_tensor(traced, page, card_ledger):
    """Go from a tensor's row to its allocation, stack and source line."""
    number = int(page.locator(LARGEST).first.get_attribute("data-tensor"))
    page.locator(LARGEST).first.locator("button").click()
    life = lifetime_of(card_ledger, number)
    expect(page.locator(TENSOR)).to_contain_text(f"event {life.born:,}")
    text = page.locator(TENSOR).inner_text()
    assert life.born_in in text
    assert all(line in text for line in life.stack)
    expect(page.locator(".nbx-Life")).to_be_visible()
    page.locator(TENSOR).get_by_role("button", name=f"Go to {life.line}").first.click()
    line = int(life.line.split("line ")[1].split()[0])
    page.wait_for_function(
        """line => {
            const cell = window.jupyterapp.shell.currentWidget.content.activeCell;
            return cell?.editor?.getCursorPosition().line === line - 1;
        }""",
        arg=line,
    )


def find_a_tensor(page, report):
    """Find a tensor in the boxes and in the table."""
    largest = max(
        (x for x in report.details.lives if x.born < report.peak.at.event <= x.freed),
        key=lambda life: life.requested,
    )
    first = page.locator(LARGEST).first
    size = re.compile(f"{largest.requested:,} bytes")
    expect(first.locator("td").first).to_have_attribute("title", size)
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
    found = page.locator(LARGEST)
    expect(found.filter(has_not_text="up.weight")).to_have_count(0)
    expect(found.first).to_contain_text("up.weight")


MARKS = """() => [...document.querySelectorAll('.nbmem-LineMark')].map(mark => {
    const place = one => one.getBoundingClientRect();
    const lines = [...mark.closest('.cm-editor').querySelectorAll('.cm-line')];
    const line = lines.find(one => Math.abs(place(one).top - place(mark).top) < 6);
    return [line.textContent.trim(), mark.title];
})"""
"""What stands beside marks in editors, and what they say."""


def marks_of(page):
    return [
        (text, *(int(b.replace(",", "")) for b in re.findall(r"([\d,]+) bytes", title)))
        for text, title in page.evaluate(MARKS)
    ]


def look_at_lines(traced, page, report):
    """Check the marked lines in the tab and in the cell's editor."""
    page.locator(f"{EXPLORER} [data-tab=lines]").click()
    page.locator("[data-testid=nbx-lines] tbody tr").first.wait_for()
    shown = page.locator("[data-testid=nbx-lines] tbody tr").evaluate_all(
        """rows => rows.map(row => [
            row.querySelector('th')?.textContent.trim(),
            ...[...row.querySelectorAll('[data-bytes]')].map(cell => Number(cell.dataset.bytes))
        ]).filter(row => row.length > 1)"""
    )
    rows = [*report.lines.rows, *report.lines.elsewhere]
    bytes_of = [[row.text, row.peak, row.kept, row.taken] for row in rows]
    sums = [sum(column) for column in list(zip(*bytes_of, strict=True))[1:]]
    assert shown == [*bytes_of, ["= allocated", *sums]]
    assert sums[:2] == [report.peak.allocated, report.ledger_at_end.allocated]

    beside = [(row.text, row.peak, row.kept, row.taken) for row in report.lines.rows]
    expect_read(page, marks_of, beside)
    page.locator(".cm-line", has_text="loss.backward()").click()
    page.keyboard.press("End")
    page.keyboard.type(" ")
    expect_read(page, marks_of, [mark for mark in beside if mark[0] != "loss.backward()"])
    traced.command("nbmem:toggle-lines")
    page.wait_for_function("() => document.querySelector('.nbmem-LineMarks') === null")
    page.keyboard.press("Backspace")  # again what was measured stands there
    traced.command("nbmem:toggle-lines")
    page.wait_for_function("() => document.querySelector('.nbmem-LineMarks') !== null")
    expect_read(page, marks_of, beside)


def insert_a_tip(traced, page):
    """Insert a tip's code into a cell below, without running it."""
    page.locator(f"{EXPLORER} [data-tab=tips]").click()
    tip = page.locator("[data-testid=nbx-tips] li").filter(has_text="Add as a cell").first
    code = tip.locator("pre").inner_text()
    tip.get_by_role("button", name="Add as a cell").click()
    expect_read(page, lambda _: traced.sources()[2], code)


@pytest.mark.cells(LOAD, TRAIN)
def test_the_saved_explorer_is_small_and_opens_without_a_kernel(
    traced, page, lab, context, pictures
):
    for tab in ("phases", "pool", "cells"):
        page.locator(f"{EXPLORER} [data-tab={tab}]").click()
        page.locator(f"{EXPLORER} [role=tabpanel][data-drawn=true]:not([hidden])").wait_for()
        shown_whole(page, pictures, f"explorer-{tab}")
    card_ledger, report = card_ledger_of(lab)
    page.locator(f"{EXPLORER} [data-tab=pool]").click()
    expect_read(page, pool_of, pool_at(card_ledger, report.peak.at.event))
    page.get_by_role("button", name="end", exact=True).click()
    expect_read(page, pool_of, pool_at(card_ledger, card_ledger.events))
    page.get_by_test_id("nbx-timeline").focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowLeft")
        assert pool_of(page) == pool_at(card_ledger, event_of(page))
    assert event_of(page) < card_ledger.events
    traced.save()
    outputs = lab.saved(traced.name).cells[1].outputs
    (data,) = [output.data for output in outputs if "data" in output]
    assert {"text/plain", "text/html"} < set(data)
    assert len(json.dumps(data)) < MAX_JSON_CHARACTERS

    fresh = context.new_page()
    asked = []
    fresh.on("request", lambda request: asked.append(request.url))
    fresh.route("**/api/kernels**", lambda route: route.abort())
    fresh.route("**/api/sessions**", lambda route: route.abort())
    traced.page = fresh
    traced.open(wait=False)
    fresh.locator("[data-testid=nbx-compact]").wait_for()
    assert fresh.locator(EXPLORER).count() == 0  # a report is short until somebody asks for more
    # JupyterLab's own dialog says that there is no server, and would take a click.
    fresh.locator(".nbx-Expand").dispatch_event("click")
    fresh.locator(DRAWN).wait_for()
    expect_read(fresh, event_of, report.peak.at.event)
    expect_read(fresh, ledger_of, held_at(card_ledger, report.peak.at.event))
    assert all(url.startswith((lab.url, "data:", "blob:")) for url in asked)
    convert(lab.saved(traced.name), lab, context)


def convert(saved, lab, context):
    """Check nbconvert's page: the static picture, without requests."""
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


@pytest.fixture
def live(traced, page):
    """The widget of the saved run, beside controls of the user's own."""
    pytest.importorskip("anywidget")
    traced.run(2)
    page.locator("[data-testid=nbx-report]").nth(1).scroll_into_view_if_needed()
    page.locator(DRAWN).nth(1).wait_for()
    return page.locator(EXPLORER).nth(1)


def wait_event(page, event):
    """Wait until the widget shows this event, and nothing but it."""
    page.wait_for_function(
        """([one, event]) => {
            const [, widget] = document.querySelectorAll(one);
            const where = widget.querySelector('[data-testid=nbx-where]').textContent;
            const shown = widget.querySelector('[data-testid=nbx-timeline]').dataset.event;
            return shown === event && !where.includes('nearest');
        }""",
        arg=[EXPLORER, str(event)],
    )


@pytest.mark.cells(LOAD, TRAIN, WIDGET)
def test_the_users_own_controls_move_the_widget_and_it_moves_them(traced, live, page, lab):
    card_ledger, report = card_ledger_of(lab)
    text = page.locator(".widget-label").last
    timeline = live.get_by_test_id("nbx-timeline")
    expect(page.locator(".widget-hbox .nbx-Explorer")).to_have_count(1)
    slider = page.get_by_role("slider", name="event").or_(page.locator(".noUi-handle")).first
    slider.focus()
    page.keyboard.press("ArrowRight")
    wait_event(page, report.peak.at.event + 1)
    expect_read(live, ledger_of, held_at(card_ledger, report.peak.at.event + 1))
    timeline.focus()
    page.keyboard.press("Home")
    text.get_by_text("moment 0,").wait_for()
    page.wait_for_function(
        "() => document.querySelector('.widget-readout').textContent.trim() === '0'"
    )
    page.keyboard.press("p")
    wait_event(page, report.peak.at.event)

    page.locator(".widget-dropdown select").select_option(index=3)
    row = live.locator(f"{LARGEST}[aria-selected=true]")
    row.wait_for()
    number = row.get_attribute("data-tensor")
    text.get_by_text(f"tensor {number}").wait_for()
    live.locator(LARGEST).nth(0).locator("button").click()
    chosen = live.locator(LARGEST).nth(0).get_attribute("data-tensor")
    text.get_by_text(f"tensor {chosen}").wait_for()
    label = "select => select.selectedOptions[0].textContent.replaceAll('\\u00a0', ' ')"
    name = page.locator(".widget-dropdown select").evaluate(label)
    expect(live.locator(LARGEST).nth(0)).to_contain_text(name)


@pytest.mark.cells(LOAD, TRAIN, WIDGET)
def test_a_live_kernel_sends_events_that_the_output_does_not_have(traced, live, page, lab):
    card_ledger, report = card_ledger_of(lab)
    between = sorted(set(range(card_ledger.events)) - set(report.timeline.event.tolist()))
    event = between[len(between) // 2]
    traced.execute(f"w.moment = {event}")
    wait_event(page, event)
    expect_read(live, ledger_of, held_at(card_ledger, event))
    live.locator("[data-tab=pool]").click()
    live.get_by_test_id("nbx-pool").wait_for()
    expect_read(live, pool_of, pool_at(card_ledger, event))
    live.get_by_test_id("nbx-timeline").focus()
    page.keyboard.press(".")
    wait_event(page, event + 1)
    expect_read(live, pool_of, pool_at(card_ledger, event + 1))

    first, last = between[0], between[-1]
    traced.execute(f"w.span = ({first}, {last})")
    wait_event(page, card_ledger.peak(first, last))
    live.locator("[data-tab=phases]").click()
    live.get_by_text("Phases in the selection").wait_for()
    box = live.get_by_test_id("nbx-timeline").bounding_box()
    said = page.locator(".widget-label").last
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 200, steps=5)
    page.mouse.up()
    while True:  # what was dragged over comes to the kernel first, then where its peak is
        text = said.inner_text()
        moment, start, end = map(int, re.findall(r"\d+", text)[:3])
        if (start, end) != (first, last) and moment == card_ledger.peak(start, end):
            break
        page.wait_for_function(
            "old => document.querySelector('.widget-label:last-of-type').textContent !== old",
            arg=text,
        )
    wait_event(page, moment)


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


@pytest.mark.cells(LOAD, "kept = torch.zeros(1000, device='cuda')", "%%memtrace\n1 + 1")
def test_a_cell_that_allocates_nothing_gets_a_sentence_and_no_curve(notebook, page):
    for cell in range(3):
        notebook.run(cell)
    explore(page)
    explorer = page.locator(EXPLORER)
    expect(explorer).to_contain_text("Nothing was allocated or freed while this was recorded")
    expect(explorer.locator(".nbx-Toolbar")).to_have_count(0)
    assert sum(ledger_of(page).values()) > 4000


FULL = """\
%%memtrace
big = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
adam = torch.optim.AdamW(big.parameters())
for step in range(3):
    adam.zero_grad()
    big(torch.randn(131072, 4096, device="cuda")).square().mean().backward()
    adam.step()"""


@pytest.mark.cells(LOAD, FULL)
def test_an_error_is_one_card_and_the_traceback_is_folded_behind_it(notebook, page, pictures):
    notebook.command("application:toggle-right-area")
    notebook.run(0)
    notebook.run(1)
    card = page.get_by_test_id("nbx-oom")
    expect(card).to_contain_text("Ran out of memory")
    expect(card).to_contain_text("free, at In [2], line 6")
    expect(card.locator("li[data-rule]").first.get_by_role("button").first).to_be_visible()
    cells = page.get_by_role("feed", name="Cells")
    traceback = cells.get_by_text("Traceback (most recent call last)")
    expect(traceback).to_have_count(1)
    expect(traceback).to_be_hidden()
    for theme in ("Dark", "Light"):
        notebook.theme(f"JupyterLab {theme}")
        for width in (500, 1344):
            page.set_viewport_size({"width": width, "height": 1000})
            card.scroll_into_view_if_needed()
            picture(page, pictures, f"oom-{theme.lower()}-{width}")
    toggle = card.get_by_test_id("nbx-traceback")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    toggle.focus()
    page.keyboard.press("Enter")
    expect(traceback).to_be_visible()
    assert traceback.bounding_box()["y"] > card.bounding_box()["y"]
    report = page.get_by_test_id("nbx-compact")
    assert traceback.bounding_box()["y"] < report.bounding_box()["y"]
    page.keyboard.press("Enter")
    expect(traceback).to_be_hidden()
    card.get_by_text("What held the memory").click()
    expect(card.locator("table").first).to_contain_text("free on the card")
    card.get_by_role("button", name="Try it").first.click()
    expect_read(page, lambda _: notebook.sources()[2], "%nbmem try batch_size")


SMALL = """\
%%memtrace --stacks
for step in range(3):
    x = torch.ones(1 << 20, device='cuda') * step"""
COUNT = """function() {
    return this.filter(one => (one.host ?? one).className.includes('bk-')).length;
}"""


def alive(cdp):
    """Count Bokeh's shadow roots and canvases, detached ones included."""
    cdp.send("HeapProfiler.collectGarbage")
    counts = []
    for name in ("ShadowRoot", "HTMLCanvasElement"):
        prototype = cdp.send("Runtime.evaluate", {"expression": f"{name}.prototype"})["result"]
        asked = {"prototypeObjectId": prototype["objectId"], "objectGroup": "counted"}
        objects = cdp.send("Runtime.queryObjects", asked)["objects"]
        call = {"functionDeclaration": COUNT, "objectId": objects["objectId"]}
        counts.append(cdp.send("Runtime.callFunctionOn", call)["result"]["value"])
        cdp.send("Runtime.releaseObjectGroup", {"objectGroup": "counted"})
    return counts


@pytest.mark.cells(LOAD, SMALL)
def test_a_cell_that_runs_again_leaves_nothing_of_its_explorer(notebook, page, context):
    notebook.command("application:toggle-right-area")
    notebook.run(0)
    notebook.run(1)
    explore(page)
    cdp = context.new_cdp_session(page)
    one = sum(alive(cdp))
    for _ in range(5):
        page.locator(DRAWN).evaluate("one => one.classList.add('old')")
        notebook.run(1)
        page.locator(f"{DRAWN}:not(.old)").wait_for()  # open again, as it was left
        expect(page.locator(".nbmem-LineMark")).to_have_count(1)
    # One that has just gone may still wait for a frame; six that were kept would be seen.
    assert one > 0
    assert sum(alive(cdp)) < 3 * one


LATE = (
    f"{LOAD}\nnbmem.frontends.notebook.idle_tasks.REST_S = 3600\n"
    "nbmem.frontends.notebook.idle_tasks.WAIT_S = 0"
)


@pytest.mark.cells(LATE, SMALL)
def test_a_report_that_is_renewed_keeps_what_a_person_has_chosen(notebook, page):
    notebook.command("application:toggle-right-area")
    notebook.run(0)
    notebook.run(1)
    open_explorer(page)
    lines = page.locator(f"{EXPLORER} [data-tab=lines]")
    lines.click()
    page.get_by_test_id("nbx-timeline").focus()
    page.keyboard.press("Home")
    expect_read(page, event_of, 0)
    page.locator(DRAWN).evaluate("one => one.classList.add('old')")
    notebook.execute("None")  # before it the kernel looks at the rest
    page.locator(f"{DRAWN}:not(.old)").wait_for()
    expect(lines).to_have_attribute("aria-selected", "true")
    expect_read(page, event_of, 0)
    expect(page.locator(".nbmem-LineMark")).to_have_count(1)


@pytest.mark.cells(
    "%load_ext nbmem",
    "%%nbmem fit n --gpu T4\nimport torch\nn = 4\n"
    "x = torch.empty(n << 27, dtype=torch.uint8, device='cuda')",
)
def test_the_value_of_a_fit_is_dragged_below_its_cell(notebook, page, pictures):
    notebook.run(0)
    notebook.run(1)
    page.get_by_test_id("nbx-fit").wait_for()
    text = page.get_by_test_id("nbx-fit-said")
    expect(text).to_have_text("n = 113 fits: the process takes 14.22 GiB")
    page.get_by_test_id("nbx-fit-slider").focus()
    page.keyboard.press("ArrowRight")
    expect(text).to_contain_text("n = 114 does not fit")
    picture(page, pictures, "fit")
