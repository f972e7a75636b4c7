"""The sidebar in Notebook 7, in its right area."""

from __future__ import annotations

import pytest

from tests.browser.conftest import opened
from tests.browser.pages import LOAD


@pytest.mark.cells(LOAD, "%%memtrace\nx = torch.zeros(2**22, device='cuda')")
def test_it_is_live_beside_the_notebook(page, notebook7, request):
    notebook = opened(page, notebook7, request)
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1)
    page.get_by_test_id("nbmem-report").wait_for()
    assert notebook.bytes_of("allocated") == 2**24
    assert page.locator(".nbmem-Badge").inner_text() == "peak 16.0 MiB · kept +16.0 MiB"
