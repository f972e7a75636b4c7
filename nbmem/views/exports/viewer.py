"""Build the page that opens a dropped recording in the browser.

The browser reads the file; nothing is sent.
"""

from __future__ import annotations

from importlib.resources import files

from nbmem.core.errors import UsageError
from nbmem.views.exports.interactive_page import OFFLINE, explorer_script
from nbmem.views.html import page
from nbmem.views.markup import Markup

_NOT_BUILT = (
    "This nbmem was installed without its compiled explorer, which the page is made of "
    "(npm ci && npm run build in labextension/)."
)
_PLACE = Markup(
    '<div id="nbmem-viewer"><p>This page needs JavaScript: it reads the files itself.</p></div>\n'
)


def viewer_page() -> str:
    """Return the viewer page, without any data.

    Raises:
        UsageError: The explorer is not compiled.
    """
    style = files("nbmem.views.widget").joinpath("static", "viewer.css")
    if not style.is_file():
        raise UsageError(_NOT_BUILT)
    own = Markup(f"<style>{style.read_text(encoding='utf-8')}</style>\n")
    return page("viewer", _PLACE + own + explorer_script(), policy=OFFLINE)
