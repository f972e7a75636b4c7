"""Make a page of reports interactive, with the explorer embedded once.

Each report has its own data. A page has the static form of each report, followed by its data; at
its end are BokehJS and the explorer, deflated. The script replaces the static form with the
explorer. Without scripts (an old browser, an e-mail preview) the static picture and tables remain.
Nothing is fetched and nothing sent.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from nbmem.views.explorer import MIME
from nbmem.views.markup import Markup, element

OFFLINE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""Content-Security-Policy of such a page: it can draw itself, and cannot connect anywhere."""
NOT_BUILT = (
    "This page is a picture: the nbmem that wrote it was installed without its compiled explorer "
    "(npm ci && npm run build in labextension/)."
)
SCRIPTS = ("bokeh.js", "page.js")
"""The explorer of a page; the second runs what the first brings."""
_NOTICE = (
    "<!-- BokehJS: Copyright (c) Anaconda, Inc., and Bokeh Contributors. BSD 3-Clause License. -->"
)
_LOADER = """
(async () => {
  const packed = document.getElementById('nbmem-explorer').textContent;
  const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  const script = document.createElement('script');
  script.textContent = await new Response(stream).text();
  document.body.append(script);
})();
"""


def interactive_report(still: str, output: Mapping[str, Any], mime: str = MIME) -> Markup:
    """Return a report's HTML and data; `player` makes it interactive.

    Args:
        still: Its static form, HTML.
        output: The data under `mime` in a notebook's output. They are not trusted: as JSON without
            a `<` they cannot end their script element.
        mime: One of `DRAWN`.
    """
    data = json.dumps(output, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(
        element("div", Markup(still)) + f'<script type="{mime}">{data}</script>'  # in this order
    )


@cache
def explorer_script() -> Markup:
    """Return the script that ends an interactive page.

    If nbmem was installed without its compiled explorer, a sentence says so.
    """
    folder = files("nbmem.views.widget").joinpath("static")
    scripts = [folder.joinpath(name) for name in SCRIPTS]
    style = folder.joinpath("explorer.css")
    if not all(file.is_file() for file in (*scripts, style)):
        return element("p", NOT_BUILT)
    script = b"\n".join(file.read_bytes() for file in scripts)
    packed = base64.b64encode(zlib.compress(script, 9)).decode()
    return Markup(
        f"<style>{style.read_text(encoding='utf-8')}</style>\n{_NOTICE}\n"
        f'<script type="text/plain" id="nbmem-explorer">{packed}</script>\n'
        f"<script>{_LOADER}</script>\n"
    )
