"""Measure the time from an allocation to its pixel in the sidebar.

`python -m tests.browser.latency [HZ]`: the cell allocates in steps and notes when; the page notes
when each figure is painted. Both clocks are this machine's.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.pages import LOAD, PANEL, Notebook
from tests.browser.server import Server

ALLOCATE = """\
import json, time
kept, told = [], []
for _ in range(150):
    kept.append(torch.zeros(1 << 18, device="cuda"))
    told.append((1000 * time.time(), torch.cuda.memory_allocated()))
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        sum(range(1000))
print(json.dumps(told))"""
WATCH = """() => {
    window.painted = [];
    const figure = document.querySelector('[data-testid=nbmem-allocated]');
    new MutationObserver(() => {
        const bytes = Number(figure.dataset.bytes);
        requestAnimationFrame(() => setTimeout(() => window.painted.push([Date.now(), bytes])));
    }).observe(figure, {attributes: true});
}"""


def main() -> None:
    """Print the figures."""
    hz = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder) / "lab", "lab")
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_context(viewport={"width": 1344, "height": 840}).new_page()
            server.notebook("latency.ipynb", LOAD, "x = torch.zeros(1, device='cuda')", ALLOCATE)
            notebook = Notebook(page, server, "latency.ipynb")
            notebook.open()
            notebook.show_sidebar()
            notebook.run(0)
            notebook.wait_link("live")
            page.evaluate(f"hz => {{ {PANEL}._front.rate = hz; }}", hz)
            notebook.run(1)
            page.get_by_test_id("nbmem-card-0").wait_for()
            page.evaluate(WATCH)
            drawn = page.evaluate(f"() => {PANEL}.drawn")
            notebook.run(2)
            told = json.loads(notebook.printed(2))
            painted = page.evaluate("() => window.painted")
            drawn = page.evaluate(f"() => {PANEL}.drawn") - drawn
        finally:
            server.stop()
    waits = [
        min(t for t, seen in painted if seen >= held) - begun
        for begun, held in told
        if any(seen >= held for _, seen in painted)
    ]
    waits.sort()
    p95 = waits[int(0.95 * len(waits))]
    seconds = (told[-1][0] - told[0][0]) / 1000
    print(  # noqa: T201
        f"{hz:g} Hz: {len(waits)} allocations in {seconds:.1f} s, {len(painted)} figures painted, "
        f"{drawn} drawn; allocation to pixel median {statistics.median(waits):.0f} ms, "
        f"p95 {p95:.0f} ms, worst {waits[-1]:.0f} ms"
    )


if __name__ == "__main__":
    main()
