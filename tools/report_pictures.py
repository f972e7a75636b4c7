"""Write docs/report-light.png and docs/report-dark.png: the static report.

`python3 tools/report_pictures.py` needs Playwright and Chromium, as tests/browser does. It draws
a recorded run of tests/recordings.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nbmem.api.render import read  # noqa: E402 - this checkout's, whatever is installed
from nbmem.views.html import render_page  # noqa: E402
from tests.browser.conftest import CHROMIUM, FLAGS  # noqa: E402

RUN = "gpt2_b4s512_adamw"
WIDTH = 1000
"""Pixels of the window; the page has a margin of 16 on each side."""


def main() -> int:
    """Draw the report in both colour schemes."""
    sync_playwright = import_module("playwright.sync_api").sync_playwright
    recorded = import_module("tests.recorded_runs")
    report = read(recorded.session_of(recorded.load(RUN)), None).report
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        page_file.write_text(render_page(report), encoding="utf-8")
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for scheme in ("light", "dark"):
            page = chromium.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            target = ROOT / "docs" / f"report-{scheme}.png"
            page.locator("main > div").screenshot(path=target)
        chromium.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
