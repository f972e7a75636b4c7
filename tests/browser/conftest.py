"""Fixtures for Chromium and JupyterLab: `pytest tests/browser`.

NBMEM_CHROMIUM names a browser that is not on the path, NBMEM_PICTURES a folder for screenshots.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
CHROMIUM = os.environ.get("NBMEM_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_STORED = "cookies,local_storage,indexeddb"
NEEDED = ("playwright", "jupyterlab", "notebook", "ipykernel", "torch")


def _why_not(items: list[pytest.Item]) -> str | None:
    """The reason why these tests cannot run here; None if they can."""
    if any(FOLDER not in item.path.parents for item in items):
        return "Playwright's event loop disturbs other tests: run `pytest tests/browser` by itself"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if CHROMIUM is None:
        return "there is no Chromium on this machine (or name one in NBMEM_CHROMIUM)"
    if not (FOLDER.parents[1] / "nbmem" / "labextension" / "package.json").exists():
        return "the extension is not compiled: in labextension, `npm ci && npm run build`"
    return None


def pytest_configure(config: pytest.Config) -> None:
    cells = "cells(*code, name, new_process): of the notebook that the test opens"
    config.addinivalue_line("markers", cells)
    config.addinivalue_line("markers", "oldest: is run in the oldest JupyterLab, too")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_not(items)
    for item in items:
        if reason is not None and FOLDER in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add cell outputs and the server's log to a failure's report."""
    report = yield
    if call.when == "call" and report.failed and "notebook" in item.funcargs:
        notebook = item.funcargs["notebook"]
        report.sections.append(("what the cells show", notebook.outputs()))
        report.sections.append(("what the server says", notebook.server.log()[-3000:]))
    return report


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A running JupyterLab."""
    from tests.browser.server import Server

    server = Server(tmp_path_factory.mktemp("lab"), "lab")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory):
    """A running Notebook 7."""
    from tests.browser.server import Server

    server = Server(tmp_path_factory.mktemp("notebook7"), "notebook")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Chromium without a window, its tabs 1344 pixels wide.

    It has a folder of its own, in which it keeps JupyterLab compiled from one test to the next.
    """
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("chromium"),
            executable_path=CHROMIUM,
            args=FLAGS,
            viewport={"width": 1344, "height": 840},
        )
        browser.set_default_timeout(30_000)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(request):
    """End the kernels and reset the settings of a test."""
    yield
    for app in {"lab", "notebook7"} & set(request.fixturenames):
        server = request.getfixturevalue(app)
        server.end_kernels()
        server.forget_settings()


@pytest.fixture
def context(browser):
    """The browser without tabs; an error of the extension's own fails the test."""
    errors = []

    def add(error):
        errors.append(error.error.stack)

    browser.on("weberror", add)
    yield browser
    browser.remove_listener("weberror", add)
    first, *tabs = browser.pages  # it ends with its last tab
    for tab in tabs:
        tab.close()
    devtools = browser.new_cdp_session(first)
    devtools.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": _STORED})
    devtools.detach()
    assert not [stack for stack in errors if "nbmem" in stack]


@pytest.fixture
def page(context):
    return context.new_page()


@pytest.fixture(scope="session")
def pictures():
    """The folder for screenshots, or None."""
    named = os.environ.get("NBMEM_PICTURES")
    if named is None:
        return None
    folder = Path(named)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def notebook(page, lab, request):
    """An open notebook with the cells of the test's mark, the panel beside it."""
    return opened(page, lab, request)


def opened(page, server, request):
    """An open notebook on this server.

    Its kernel has imported torch before if the first cell does, and the marker asks for no new
    process.
    """
    from tests import forked_kernels
    from tests.browser.pages import Notebook

    (marker,) = request.node.iter_markers("cells")
    name = marker.kwargs.get("name") or f"{request.node.name}.ipynb"
    forked = "import torch" in marker.args[0] and not marker.kwargs.get("new_process")
    server.notebook(
        name,
        *[cell.replace("{name}", name) for cell in marker.args],
        kernel=forked_kernels.KERNEL if forked else "python3",
    )
    notebook = Notebook(page, server, name)
    notebook.open()
    notebook.show_sidebar()
    return notebook
