"""Measure the explorer's speed for 1,000 to 1,000,000 events.

    python -m tests.benchmarks.explorer_speed [CHROMIUM]

Reading the session, the data, and its size in Python; with a Chromium, also the redraw in a page
(a zoom of the timeline, to the next frame), which shall take at most 0.3 s; and what the kernel
takes to tell a live widget of a moment, with what the page takes to add and draw it.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import bokeh
import numpy as np

from nbmem.report.analysis import card_ledger_of, report_of
from nbmem.report.analysis.moment_details import moment_details
from nbmem.views.explorer import explorer_output
from nbmem.views.explorer.data import VERSION, closeup_data
from nbmem.views.explorer.output import packed
from tests.benchmarks.load_to_report import LAYERS, Training

if TYPE_CHECKING:
    from nbmem.core.session.session import Session

SIZES = (1_000, 100_000, 1_000_000)
STATIC = Path(__file__).parents[2] / "nbmem" / "views" / "widget" / "static"
BOKEHJS = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
PAGE = """<!DOCTYPE html><body><div id="root"></div><script type="module">
import explorer from './explorer.js';
Object.assign(globalThis, {values: await (await fetch('values.json')).json(), on: {}});
const script = await (await fetch('bokeh.js')).arrayBuffer();
const model = {
  get: name => values[name], set: (name, value) => { values[name] = value; }, save_changes() {},
  on: (name, callback) => { on[name] = callback; }, off() {},
  send() { on['msg:custom']({kind: 'bokehjs'}, [new DataView(script)]); },
};
explorer.render({model, el: document.getElementById('root')});
</script>"""
ASKED = 5
"""Moments that a live widget is asked for."""
TOLD = """async told => {
    const [times, where] = [[], document.querySelector('[data-testid=nbx-where]')];
    for (const [event, closeup] of told) {
        const began = performance.now();
        Object.assign(values, {moment: event, closeup});
        on['change:moment']();
        on['change:closeup']();
        const shown = event.toLocaleString('en-US');
        while (!where.textContent.includes(shown) || where.textContent.includes('nearest')) {
            await new Promise(done => requestAnimationFrame(done));
        }
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        times.push(performance.now() - began);
    }
    return times;
}"""
REDRAW = """async () => {
    const times = [];
    for (const label of ['Zoom in', 'Zoom in', 'Zoom out', 'Zoom out', 'Show all']) {
        const button = document.querySelector(`[aria-label^="${label}"]`);
        const began = performance.now();
        button.click();
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        times.push(performance.now() - began);
    }
    return times;
}"""


def session(events: int) -> Session:
    """Make a training loop of at least so many events."""
    training = Training()
    if events < 10 * LAYERS:
        training.sizes = training.sizes[: LAYERS // 10]
    training.load()
    step = 0
    while len(training.rows) < events:
        training.step(step)
        step += 1
    return training.session()


@contextlib.contextmanager
def served(folder: Path):
    """Serve a folder over HTTP on this machine."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def in_a_page(browser, values: dict, told: list) -> tuple[float, list[float], list[float]]:
    """Measure milliseconds to the first picture and of redraws."""
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as url:
        folder = Path(name)
        (folder / "index.html").write_text(PAGE)
        (folder / "values.json").write_text(json.dumps(values))
        (folder / "bokeh.js").write_bytes(BOKEHJS.read_bytes())
        (folder / "explorer.js").write_bytes((STATIC / "explorer.js").read_bytes())
        page = browser.new_page(viewport={"width": 1344, "height": 1200})
        page.goto(url)
        page.wait_for_selector("[data-testid=nbx-explorer][data-drawn=true]", timeout=60_000)
        first = page.locator("[data-testid=nbx-explorer]").get_attribute("data-drawn-ms")
        redraws = page.evaluate(REDRAW)
        learned = page.evaluate(TOLD, told)
        page.close()
    return float(first), redraws, learned


def closeup_messages(card_ledger) -> tuple[list[tuple[int, dict]], list[float]]:
    """Return a widget's messages of some moments, with their times."""
    found, times = [], []
    for part in range(1, ASKED + 1):
        event = card_ledger.events * part // (ASKED + 1) + 1
        began = time.perf_counter()
        data = packed(closeup_data(moment_details(card_ledger, event)))
        times.append(1000 * (time.perf_counter() - began))
        found.append((event, {"version": VERSION, "data": data}))
    return found, times


def measure(chromium: str | None) -> None:
    """Print a line for each size."""
    print("events      report     data    output     a moment: kernel, sent")
    print("            first picture   redraw median, worst   a moment in the page")
    with contextlib.ExitStack() as stack:
        browser = None
        if chromium:
            from playwright.sync_api import sync_playwright

            playwright = stack.enter_context(sync_playwright())
            flags = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for events in SIZES:
            recorded = session(events)
            began = time.perf_counter()
            card_ledger = card_ledger_of(recorded)
            report = report_of(card_ledger)
            read = time.perf_counter()
            output = explorer_output(report)
            written = time.perf_counter()
            told, asked = closeup_messages(card_ledger)
            sent = max(len(closeup["data"]) for _, closeup in told) / 1024
            print(
                f"{report.events:9,}  {read - began:6.2f} s {written - read:6.3f} s "
                f"{len(json.dumps(output)) / 1024:6.1f} kB   "
                f"{np.median(asked):5.0f} ms {max(asked):5.0f} ms {sent:5.1f} kB"
            )
            if browser is not None:
                values = {"report": output, "moment": report.peak.at.event, "bokeh": "3"}
                values |= {"span": None, "tensor": None, "closeup": {}}
                first, redraws, learned = in_a_page(browser, values, told)
                middle = np.median(redraws), np.median(learned)
                print(
                    f"            {first:7.0f} ms       {middle[0]:5.0f} ms {max(redraws):5.0f} ms "
                    f"    {middle[1]:5.0f} ms {max(learned):5.0f} ms"
                )


if __name__ == "__main__":
    measure(sys.argv[1] if len(sys.argv) > 1 else None)
