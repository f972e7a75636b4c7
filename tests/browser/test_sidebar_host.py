"""The sidebar on a machine without a card: the host's memory."""

import pytest

from tests.browser.pages import expect, golden, picture
from tests.browser.test_explorer import explore, shown_whole

PLAIN = "%load_ext nbmem\nimport torch"
TRAIN = """\
%%memtrace
import os
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)])
optimizer = torch.optim.Adam(model.parameters())
for step in range(400):
    loss = model(torch.randn(64, 2048)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if os.path.exists("{name}.enough"):
        break"""
WEIGHTS = 4 * 8 * (2048 * 2048 + 2048)


@pytest.mark.cells(PLAIN, TRAIN, name="laptop.ipynb")
def test_without_a_card_the_host_is_live(notebook, page, lab, pictures):
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1, wait=False)
    host = page.get_by_test_id("nbmem-host")
    host.locator("[data-part=optimizer_state]").wait_for()
    weights = host.locator("[data-part=weights] .nbmem-Bytes")
    expect(weights).to_have_attribute("title", f"{WEIGHTS:,} bytes")
    parts = host.locator("[data-part]").evaluate_all("rows => rows.map(row => row.dataset.part)")
    assert parts[-2:] == ["other_processes", "free"]
    lines = host.locator("tbody tr").evaluate_all("rows => rows.map(row => row.className)")
    first = lines.index("nbmem-mod-sum")  # the process, and what of it are files
    assert lines[first + 1] == "nbmem-mod-of"
    expect(host.locator("[data-of=files]")).to_have_count(1)
    expect(host.locator("[data-sum]")).to_have_attribute("data-sum", "process")
    expect(page.get_by_test_id("nbmem-status")).to_contain_text("RAM ")
    page.get_by_test_id("nbmem-running").get_by_text("step").wait_for()
    if pictures is not None:
        notebook.watch_readings("process")
        page.wait_for_function("() => window.seen.size > 5")
        notebook.command("application:toggle-left-area")
        notebook.drag_sidebar(360)
        for theme in ("Dark", "Light"):
            notebook.theme(f"JupyterLab {theme}")
            picture(page, pictures, f"sidebar-host-{theme.lower()}")
        notebook.drag_sidebar(250)
        picture(page, pictures, "sidebar-host-narrow")
    lab.touch(f"{notebook.name}.enough")
    notebook.wait_run()
    page.get_by_test_id("nbmem-report").wait_for()
    page.get_by_text("no cell runs").wait_for()
    report = page.get_by_test_id("nbmem-report")
    expect(report.locator("[data-sum=process] + [data-of=files]")).to_have_count(1)
    report.scroll_into_view_if_needed()
    picture(page, pictures, "sidebar-host-report")
    if pictures is not None:
        notebook.command("application:toggle-right-area")
    explore(page)
    ledger = page.get_by_test_id("nbx-ledger")
    files = ledger.locator("[data-sum=process] + [data-part=files]")
    assert int(files.get_attribute("data-bytes")) > 0
    assert ledger.locator("[data-part=cache]").count() <= 1  # a container may have none
    for theme in ("Light", "Dark") if pictures is not None else ():
        notebook.theme(f"JupyterLab {theme}")
        shown_whole(page, pictures, f"explorer-host-{theme.lower()}")


@pytest.mark.cells("%load_ext nbmem")
def test_a_card_comes_before_the_host(notebook, page):
    notebook.run(0)
    notebook.wait_link("live")
    bare = golden("state")["samples"][1]
    sample = golden("sample")
    notebook.push(sample | {"cards": [], "host": bare["host"]})
    page.get_by_test_id("nbmem-host").wait_for()
    notebook.push(sample)
    page.get_by_test_id("nbmem-card-0").wait_for()
    expect(page.get_by_test_id("nbmem-host")).to_have_count(0)
