"""The sidebar in Notebook 7, in its right area, and the explorer under a cell."""

import pytest

from tests.browser.conftest import opened
from tests.browser.pages import LOAD, expect


@pytest.mark.oldest
@pytest.mark.cells(LOAD, "%%memtrace\nx = torch.zeros(2**22, device='cuda')", new_process=True)
def test_the_sidebar_is_live_beside_the_notebook(page, notebook7, request):
    notebook = opened(page, notebook7, request)
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1)
    page.get_by_test_id("nbmem-report").wait_for()
    notebook.expect_bytes("allocated", 2**24)
    expect(page.locator(".nbmem-Badge")).to_have_text(
        "peak 16.0 MiB · kept +16.0 MiB", use_inner_text=True
    )
    assert page.get_by_test_id("nbmem-status").count() == 0  # Notebook 7 has no status bar


@pytest.mark.cells(
    LOAD,
    "%%memtrace\nx = [torch.zeros(2**22, device='cuda') for _ in range(4)]",
    new_process=True,
)
def test_the_explorer_is_drawn_without_requests(page, notebook7, request):
    asked = []
    page.on("request", lambda one: asked.append(one.url))
    notebook = opened(page, notebook7, request)
    notebook.run(0)
    notebook.run(1)
    page.get_by_role("button", name="Explore", exact=True).click()
    page.locator("[data-testid=nbx-explorer][data-drawn=true]").wait_for()
    page.get_by_role("button", name="events", exact=True).click()
    timeline = page.get_by_test_id("nbx-timeline")
    peak = timeline.get_attribute("data-event")
    box = timeline.bounding_box()
    timeline.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    page.locator(f"[data-testid=nbx-timeline]:not([data-event='{peak}'])").wait_for()
    bytes_of = "[data-testid=nbx-ledger] [data-category=user_tensors]"
    assert int(page.locator(bytes_of).get_attribute("data-bytes")) in {2**24, 2**25, 3 * 2**24}
    before = notebook.sources()
    for key in "xddab":
        page.keyboard.press(key)
    assert notebook.sources() == before
    assert all(url.startswith((notebook7.url, "data:", "blob:")) for url in asked)
