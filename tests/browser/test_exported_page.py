"""Exported pages: interactive without kernel, server or network."""

import base64
import lzma
from pathlib import Path

import nbformat
import pytest

from nbmem.api import tracing
from nbmem.core.files.session import save_session
from nbmem.views.charts.growth import LEFT, RIGHT, WIDTH, right_edge
from nbmem.views.exports.page import explorer_page
from nbmem.views.exports.viewer import viewer_page
from nbmem.views.fit import render_interactive
from nbmem.views.html import page as html_page
from nbmem.views.mime_bundle import mimebundle
from tests.browser.pages import expect, expect_own_colours, picture
from tests.ranks.test_world_views import alternating
from tests.views import sample_reports as sample
from tests.views.test_fit_data import FIT

RECORDINGS = Path(__file__).parents[1] / "recordings" / "snapshots"
DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  document.body.dispatchEvent(
    new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture
def offline(context):
    page = context.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    context.set_offline(True)
    yield page
    context.set_offline(False)
    elsewhere = [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    assert not elsewhere


def reports(page, path, count):
    page.goto(path.as_uri())
    found = page.get_by_test_id("nbx-report")
    found.nth(count - 1).wait_for(state="attached")
    return found


def expect_moment_after_click(report):
    """Click `end` and wait for the text of that moment."""
    report.scroll_into_view_if_needed()
    where = report.get_by_test_id("nbx-where")
    before = where.inner_text()
    report.get_by_role("button", name="end", exact=True).click()
    expect(where).not_to_have_text(before, use_inner_text=True)


def test_the_address_keeps_the_chosen_moment(offline, page, tmp_path):
    path = tmp_path / "cnn.html"
    path.write_text(explorer_page(sample.cnn()), encoding="utf-8")
    expect_moment_after_click(reports(offline, path, 1).first)
    text = offline.get_by_test_id("nbx-where").inner_text()
    assert "#event=" in offline.url
    expect_own_colours(offline, offline.get_by_test_id("nbx-report"))
    page.goto(offline.url)
    expect(page.get_by_test_id("nbx-where")).to_have_text(text, use_inner_text=True)


def test_the_value_of_a_fit_is_dragged_on_its_chart(offline, tmp_path):
    path = tmp_path / "fit.html"
    path.write_text(html_page("fit", render_interactive(FIT)), encoding="utf-8")
    offline.goto(path.as_uri())
    text = offline.get_by_test_id("nbx-fit-said")
    expect(text).to_have_text("batch = 10 fits: every value below this answer that was tried does")
    slider = offline.get_by_test_id("nbx-fit-slider")
    slider.focus()
    for _ in range(2):
        offline.keyboard.press("ArrowLeft")
    expect(text).to_have_text("batch = 8 fits: the process takes 8.00 GiB")
    expect(offline.locator(".nbx-Fit-table caption")).to_have_text("At the peak, as it ran")
    box = offline.locator(".nbx-Fit-picture").bounding_box()
    axis = LEFT + (RIGHT - LEFT) * 12 / right_edge(FIT)
    middle = (box["x"] + box["width"] * axis / WIDTH, box["y"] + box["height"] / 2)
    offline.mouse.move(box["x"] + 100, middle[1])
    offline.mouse.down()
    offline.mouse.move(*middle)
    offline.mouse.up()
    expect(text).to_contain_text("batch = 12 by luck")
    expect(offline.locator(".nbx-Fit-table tr").first).to_contain_text("12.00 GiB")


def test_a_page_of_a_world_has_each_ranks_explorer_when_it_is_unfolded(offline, tmp_path):
    path = tmp_path / "world.html"
    path.write_text(alternating(tmp_path / "runs", 3).to_page(), encoding="utf-8")
    offline.goto(path.as_uri())
    offline.wait_for_function("document.getElementById('nbmem-explorer') !== null")
    explorers = offline.get_by_test_id("nbx-report")
    offline.locator("summary", has_text="rank 2").click()
    offline.wait_for_selector("[data-testid=nbx-explorer][data-drawn=true]")
    assert explorers.count() == 1  # the others wait until they are wanted
    expect_moment_after_click(explorers.first)
    offline.locator("summary", has_text="rank 0").click()
    explorers.nth(1).wait_for(state="attached")
    expect(offline.locator("details[open]")).to_have_count(1)


def test_an_exported_page_is_interactive_and_makes_no_request(offline, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(explorer_page(sample.cnn()), encoding="utf-8")
    report = reports(offline, path, 1).first
    offline.wait_for_selector("[data-testid=nbx-explorer][data-drawn=true]")
    expect_moment_after_click(report)
    report.locator("[data-tab=lines]").click()  # the sample has no stacks
    expect(report.get_by_test_id("nbx-no-lines")).to_contain_text("--stacks")
    assert report.get_by_test_id("nbx-compact").get_by_text("Peak").count()  # its verdict
    assert (
        offline.get_by_text("moments are in this page")
        .or_(offline.get_by_text("Every moment of the recording"))
        .count()
    )
    expect(offline.locator("img")).to_have_count(0)  # the picture has made room


def test_a_notebooks_page_has_one_copy_of_what_draws_its_reports(offline, tmp_path):
    pytest.importorskip("nbconvert")
    from nbmem.views.exports.notebook import notebook_page

    made = [sample.cnn(), sample.small(), sample.nothing_happened()]
    outputs = [nbformat.v4.new_output("display_data", mimebundle(report)) for report in made]
    cell = nbformat.v4.new_code_cell("%%memtrace", outputs=outputs)
    notebook = tmp_path / "run.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), notebook)
    path = tmp_path / "run.html"
    path.write_text(notebook_page(notebook), encoding="utf-8")
    found = reports(offline, path, 3)
    assert path.read_text().count("nbmem-explorer") == 2  # the script and who reads it
    expect_moment_after_click(found.first)
    expect_moment_after_click(found.nth(1))


@pytest.fixture
def growing(tmp_path):
    """Return the page of an evaluation whose list grows, and its growth."""
    import torch

    from nbmem import virtual

    with virtual.activated("T4"):
        net, preds = torch.nn.Linear(512, 1024).cuda(), []
        names = {"net": net, "preds": preds}
        with tracing.Trace("evaluate", namespace=names) as trace, torch.no_grad():
            preds.extend(net(torch.ones(1024, 512, device="cuda")) for _ in range(6))
    report = trace.report()
    path = tmp_path / "grown.html"
    path.write_text(explorer_page(report), encoding="utf-8")
    return path, report.growth


def test_growth_is_drawn_step_by_step_and_keys_go_from_step_to_step(offline, growing, pictures):
    path, growth = growing
    report = reports(offline, path, 1).first
    offline.wait_for_selector("[data-testid=nbx-explorer][data-drawn=true]")
    tab = report.locator("[data-tab=growth]")
    report.locator("[data-tab=moment]").focus()
    offline.keyboard.press("ArrowRight")
    expect(tab).to_be_focused()
    bars = report.locator(".nbx-Grow-step")
    held = [int(bar) for bar in bars.evaluate_all("all => all.map(one => one.dataset.bytes)")]
    assert held == list(growth.holders[0].held)
    high = bars.locator(".nbx-Grow-part").evaluate_all("all => all.map(one => one.clientHeight)")
    assert high == sorted(high)
    assert abs(high[-1] - 6 * high[0]) <= 6  # whole pixels
    text = report.get_by_test_id("nbx-grown")
    offline.keyboard.press("Tab")
    offline.keyboard.press("Home")
    offline.keyboard.press("ArrowRight")
    expect(bars.nth(1)).to_be_focused()
    offline.keyboard.press("Enter")
    expect(text).to_contain_text("after step 1 · preds 8.0 MiB, +4.0 MiB")
    assert f"#event={growth.events[1]}" in offline.url
    expect(report.get_by_test_id("nbx-growth")).to_contain_text("preds+4.0 MiB24.0 MiB")
    for width in (220, 600):
        offline.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            offline.emulate_media(color_scheme=scheme)
            picture(offline, pictures, f"growth-{scheme}-{width}", report)
        assert offline.evaluate("document.documentElement.scrollWidth") <= width
        assert bars.first.bounding_box()["width"] > 10


def test_an_error_is_a_card_in_its_page_with_the_calls_folded_behind_it(
    offline, tmp_path, pictures
):
    import torch

    from nbmem import virtual

    def grab():
        return torch.empty(1 << 40, device="cuda")

    with virtual.activated("T4"), tracing.Trace("grab") as trace:
        kept = torch.ones(1 << 20, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            grab()
        del kept
    path = tmp_path / "full.html"
    path.write_text(explorer_page(trace.report()), encoding="utf-8")
    offline.goto(path.as_uri())
    card = offline.get_by_test_id("nbx-oom")
    expect(card).to_have_count(1)
    expect(card).to_contain_text("4,096.00 GiB asked for")
    calls = card.get_by_text("in grab").last
    expect(calls).to_be_hidden()
    card.get_by_text("Traceback, the most recent call last").click()
    expect(calls).to_be_visible()
    offline.set_viewport_size({"width": 220, "height": 900})
    assert offline.evaluate("document.documentElement.scrollWidth") <= 220
    picture(offline, pictures, "oom-page-220", card)


def expect_ledger_bytes(page, name, count):
    row = page.locator(f"[data-testid=nbx-ledger] {name}")
    expect(row).to_have_attribute("data-bytes", str(count))


def test_a_file_is_dropped_onto_the_viewer_and_stays_there(offline, tmp_path):
    """A recording, a snapshot and what is neither, one after the other on one page."""
    snapshot = tmp_path / "streams.pickle"
    snapshot.write_bytes(lzma.decompress((RECORDINGS / "streams.pickle.xz").read_bytes()))
    trace = tracing.open(snapshot)
    at_peak = trace.report().ledger_at_peak
    recording, bare = trace.save(tmp_path / "run.nbmem"), tmp_path / "older.nbmem"
    save_session(trace.session, bare)
    hostile = tmp_path / "hostile.pickle"
    hostile.write_bytes(b"\x80\x04cos\nsystem\n.")
    path = tmp_path / "viewer.html"
    path.write_text(viewer_page(), encoding="utf-8")

    offline.goto(path.as_uri())
    drop = offline.locator("[aria-label='The file']")
    drop.get_by_text("Nothing is sent anywhere").wait_for()
    for file in (recording, snapshot):
        offline.evaluate(DROP, [file.name, base64.b64encode(file.read_bytes()).decode()])
        offline.wait_for_function("name => document.title === `nbmem: ${name}`", arg=file.name)
        offline.wait_for_selector("[data-testid=nbx-explorer][data-drawn=true]")
        expect_ledger_bytes(offline, "[data-sum=active]", at_peak.active)
        expect_ledger_bytes(offline, "[data-sum=reserved]", at_peak.reserved)
    expect_moment_after_click(offline.get_by_test_id("nbx-report"))
    text = offline.locator(".nbv-Said")
    for file, why in (
        (hostile, "it wants os.system"),
        (bare, "it was saved without what this page draws"),
        (path, "it is neither a recording of nbmem"),
    ):
        offline.get_by_label("A recording or a snapshot").set_input_files(file)
        text.get_by_text(f"{file.name} cannot be shown: {why}").wait_for()
        expect(offline.get_by_test_id("nbx-explorer")).to_have_count(0)
