"""Actions of a user in JupyterLab or Notebook 7, as calls that wait."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Locator, LocatorAssertions, Page

    from tests.browser.server import Server

LOAD = """\
%load_ext nbmem
%nbmem gpu L4
import torch, nbmem.frontends.notebook.idle_tasks
nbmem.frontends.notebook.idle_tasks.NEXT_S = 60  # a heap walk ends on a slow machine"""
_ID = "nbmem-sidebar"
PANEL = f"[...window.jupyterapp.shell.widgets('right')].find(panel => panel.id === '{_ID}')"
"""The panel's own object, in the page."""
GOLDEN = Path(__file__).parents[1] / "sidebar" / "golden"
_PUSH = """\
import comm
if "_test_push" not in globals():
    _test_push = comm.create_comm("nbmem", primary=False)
    comm.get_comm_manager().register_comm(_test_push)"""
KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
"""The connection to the kernel of what is in front."""


def golden(name: str) -> Any:
    """Return a golden message with the time of an hour from now."""
    message = json.loads((GOLDEN / f"{name}.json").read_text())
    return message | {"t_ms": 1000 * (time.time() + 3600)}


def hostile() -> list[Any]:
    """Messages that must be refused."""
    return [data for _, data in json.loads((GOLDEN / "hostile.json").read_text())]


class Notebook:
    """One notebook in one tab."""

    def __init__(self, page: Page, server: Server, name: str) -> None:
        self.page = page
        self.server = server
        self.name = name

    def open(self, *, wait: bool = True) -> None:
        """Open it, in a workspace of its own, and wait until its kernel is idle."""
        place = f"notebooks/{self.name}"
        if self.server.app == "lab":
            workspace = re.sub("[^a-z0-9]", "", self.name)
            place = f"lab/workspaces/{workspace}/tree/{self.name}?reset"
        self.page.goto(self.server.url + place)
        self.page.wait_for_selector(".jp-NotebookPanel", timeout=60_000)
        if wait:
            self.wait_idle()

    def wait_idle(self) -> None:
        self.page.wait_for_function(f"() => {KERNEL}?.status === 'idle'", timeout=60_000)

    def run(self, index: int, *, wait: bool = True) -> None:
        """Run a cell; wait for its end."""
        self.page.evaluate(
            """i => {
                const book = window.jupyterapp.shell.currentWidget.content;
                book.activeCellIndex = i;
                book.deselectAll();
                window.cellRun = window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            index,
        )
        if wait:
            self.wait_run()

    def wait_run(self) -> None:
        """Wait for the cell that `run` started."""
        self.page.evaluate("() => window.cellRun")

    def select(self, index: int) -> None:
        """Make a cell the active one."""
        self.page.evaluate(
            """i => {
                const book = window.jupyterapp.shell.currentWidget.content;
                book.activeCellIndex = i;
                book.deselectAll();
            }""",
            index,
        )

    def execute(self, code: str) -> None:
        """Run code in the kernel, beside the cells, and wait for its end."""
        self.page.evaluate(
            f"code => {KERNEL}.requestExecute({{code, store_history: false}}).done", code
        )

    def push(self, *messages: dict[str, Any]) -> None:
        """Let the kernel push these, as nbmem does, whatever they are."""
        self.execute(f"{_PUSH}\nfor data in {list(messages)!r}:\n    _test_push.send(data)")

    def command(self, command: str, **arguments: object) -> None:
        """Run one of the application's commands, and wait for it."""
        self.page.evaluate(
            """async ([id, args]) => { await window.jupyterapp.commands.execute(id, args); }""",
            [command, arguments],
        )

    def restart(self) -> None:
        self.page.evaluate(f"() => {KERNEL}.restart()")
        self.wait_idle()

    def printed(self, index: int) -> str:
        """Return the text that a cell has printed."""
        return self.page.evaluate(
            """i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.toJSON().outputs
                .filter(output => output.output_type === 'stream')
                .map(output => [output.text].flat().join('')).join('')""",
            index,
        )

    def outputs(self) -> str:
        """Return the outputs of every cell as JSON, for the log of a failure."""
        return self.page.evaluate(
            """() => JSON.stringify(window.jupyterapp.shell.currentWidget.content.widgets
                .map(cell => cell.model.toJSON().outputs), null, 1)"""
        )[-10_000:]

    def sources(self) -> list[str]:
        """The code of every cell."""
        return self.page.evaluate(
            """() => window.jupyterapp.shell.currentWidget.content.widgets
                .map(cell => cell.model.sharedModel.source)"""
        )

    def save(self) -> None:
        self.command("docmanager:save")

    def show_sidebar(self) -> Locator:
        """Open the panel."""
        self.page.evaluate("id => window.jupyterapp.shell.activateById(id)", _ID)
        panel = self.page.get_by_test_id(_ID)
        panel.wait_for(state="visible")
        return panel

    def drag_sidebar(self, width: int) -> None:
        """Make the panel this wide, in pixels, by its edge."""
        edge = self.page.locator("#jp-main-split-panel > .lm-SplitPanel-handle:visible").last
        box = edge.bounding_box()
        self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 300)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + 10, box["y"] + 300)
        shown = self.page.locator("#nbmem-sidebar").bounding_box()
        self.page.mouse.move(shown["x"] + shown["width"] - width - 2, box["y"] + 300)
        self.page.mouse.up()

    def wait_link(self, kind: str) -> None:
        """Wait until the panel has come as far as this with the kernel."""
        self.page.wait_for_selector(f"[data-testid={_ID}][data-link={kind}]")

    def watch_readings(self, figure: str = "allocated") -> None:
        """Collect the different readings from now on, in the page's `window.seen`."""
        self.page.evaluate(
            """name => {
                window.seen = new Set();
                const figure = document.querySelector(`[data-testid=nbmem-${name}]`);
                new MutationObserver(() => window.seen.add(figure.dataset.bytes))
                    .observe(figure, {attributes: true});
            }""",
            figure,
        )

    def expect_bytes(self, figure: str, count: int) -> None:
        """Wait until a figure of the card has this value."""
        expect(self.page.get_by_test_id(f"nbmem-{figure}")).to_have_attribute(
            "data-bytes", str(count)
        )

    def bytes_of(self, figure: str) -> int:
        """Return a figure of the card as the page shows it."""
        return int(self.page.get_by_test_id(f"nbmem-{figure}").get_attribute("data-bytes") or "")

    def theme(self, name: str) -> None:
        """`JupyterLab Dark` or `JupyterLab Light`."""
        self.command("apputils:change-theme", theme=name)
        light = "false" if "Dark" in name else "true"
        self.page.wait_for_selector(f"body[data-jp-theme-light={light}]", state="attached")


def expect(place: Locator) -> LocatorAssertions:
    """Playwright's assertions, which wait: what was drawn may be drawn anew at any time.

    Imported where it is used: these tests are collected where Playwright is not.
    """
    from playwright.sync_api import expect as asserted

    return asserted(place)


def expect_read(page: Page, read: Callable[[Any], Any], expected: object) -> None:
    """Wait until a reading of the page has this value."""
    end = time.monotonic() + 30
    while (found := read(page)) != expected and time.monotonic() < end:
        page.evaluate("() => new Promise(requestAnimationFrame)")
    assert found == expected


def picture(page: Page, folder: Path | None, name: str, locator: Locator | None = None) -> None:
    """Save a screenshot, if pictures were asked for."""
    if folder is not None:
        page.mouse.move(0, 0)
        (locator or page).screenshot(path=folder / f"{name}.png", animations="disabled")


REPAINTED = """root => [...root.querySelectorAll('[style*="background"]')]
  .filter(node => node.checkVisibility() && node.style.backgroundColor.startsWith('rgb('))
  .filter(node => getComputedStyle(node).backgroundColor !== node.style.backgroundColor)
  .map(node => node.className)"""


def expect_own_colours(page, root):
    """Check that a forced palette leaves what a colour tells, like a category, as it is."""
    page.emulate_media(forced_colors="active")
    assert page.evaluate("matchMedia('(forced-colors: active)').matches")
    assert root.locator('[style*="background"]').count() > 3
    repainted = root.evaluate(REPAINTED)
    assert not repainted, repainted
    page.emulate_media(forced_colors="none")
