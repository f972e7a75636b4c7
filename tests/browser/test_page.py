"""A page that was handed on: it answers without a kernel, without a server, without a network."""

from __future__ import annotations

import nbformat
import pytest

from nbmem.views.bundle import mimebundle
from nbmem.views.exports.page import living_page
from tests.views import sample


@pytest.fixture
def offline(context):
    context.set_offline(True)
    asked = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    yield page
    elsewhere = [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    assert not elsewhere


def explorers(page, path, count):
    page.goto(path.as_uri())
    found = page.get_by_test_id("nbx-explorer")
    found.nth(count - 1).wait_for(state="attached")
    return found


def answers(page, explorer):
    """Whether a click on `end` is followed by the moment in words."""
    explorer.scroll_into_view_if_needed()
    where = explorer.get_by_test_id("nbx-where")
    before = where.inner_text()
    explorer.get_by_role("button", name="end", exact=True).click()
    return before != where.inner_text()


def test_an_exported_page_is_alive_and_reaches_nobody(offline, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(living_page(sample.cnn()), encoding="utf-8")
    explorer = explorers(offline, path, 1).first
    offline.wait_for_selector("[data-testid=nbx-explorer][data-drawn=true]")
    assert answers(offline, explorer)
    assert (
        offline.get_by_text("moments are in this page")
        .or_(offline.get_by_text("Every moment of the recording"))
        .count()
    )
    assert offline.locator("img").count() == 0  # the picture has made room


def test_a_notebooks_page_has_one_copy_of_what_draws_its_reports(offline, tmp_path):
    pytest.importorskip("nbconvert")
    from nbmem.views.exports.notebook import notebook_page

    reports = [sample.cnn(), sample.small(), sample.nothing_happened()]
    outputs = [nbformat.v4.new_output("display_data", mimebundle(report)) for report in reports]
    cell = nbformat.v4.new_code_cell("%%memtrace", outputs=outputs)
    notebook = tmp_path / "run.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), notebook)
    path = tmp_path / "run.html"
    path.write_text(notebook_page(notebook), encoding="utf-8")
    found = explorers(offline, path, 3)
    assert path.read_text().count("nbmem-explorer") == 2  # the script and who reads it
    assert answers(offline, found.first)
    assert answers(offline, found.nth(1))
