"""How Sphinx builds the site (`sphinx-build -W docs out/docs`): without a network or torch."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import nbmem  # noqa: E402 - this checkout's, not an installed one
from nbmem.views.explorer import MIME  # noqa: E402
from nbmem.views.exports.interactive_page import SCRIPTS, interactive_report  # noqa: E402
from nbmem.views.mime_types import DRAWN  # noqa: E402

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_URLS = _PROJECT["urls"]

project = "nbmem"
author = _PROJECT["authors"][0]["name"]
project_copyright = author
version = release = nbmem.__version__
html_baseurl = _URLS["Documentation"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests/notebooks runs them, and leaves them in out/notebooks
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # no widget is drawn, and no script fetched
autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"
default_role = "code"
napoleon_use_ivar = True  # attributes as a list
copybutton_prompt_text = "$ "

html_theme = "pydata_sphinx_theme"
html_title = "nbmem"
html_static_path = ["_static", "../nbmem/views/widget/static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "github_url": _URLS["Repository"],
    "header_links_before_dropdown": 7,
    "logo": {"text": "nbmem"},
    "navbar_align": "left",
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}

OUTSIDE = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
}
"""Pages whose text is a file that people look for at the top of the repository."""


def _stage_notebooks() -> None:
    """Copy the notebooks beside the pages, with their outputs where they have been executed."""
    staged = ROOT / "docs" / "notebooks"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        executed = ROOT / "out" / "notebooks" / path.name
        book = json.loads((executed if executed.exists() else path).read_text(encoding="utf-8"))
        for mime in DRAWN:
            for data in _outputs(book, mime):
                html = "".join(data["text/html"])
                data["text/html"] = interactive_report(html, data.pop(mime), mime)
        (staged / path.name).write_text(json.dumps(book), encoding="utf-8")


def _outputs(book: dict[str, Any], mime: str) -> Iterator[dict[str, Any]]:
    """Yield the outputs of a notebook that the explorer's script can draw."""
    for cell in book["cells"]:
        for output in cell.get("outputs", ()):
            if mime in output.get("data", ()):
                yield output["data"]


class LiveReport(SphinxDirective):
    """The first report of a notebook, to click in; its content where it was not executed."""

    has_content = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the report, or what stands in its place."""
        executed = ROOT / "out" / "notebooks" / f"{self.arguments[0]}.ipynb"
        if executed.exists():
            book = json.loads(executed.read_text(encoding="utf-8"))
            for data in _outputs(book, MIME):
                report = interactive_report("".join(data["text/html"]), data[MIME])
                return [nodes.raw("", f'<div class="live">{report}</div>', format="html")]
        return self.parse_content_to_nodes()


def _add_explorer(app: Sphinx, page: str, *_: object) -> None:
    """Give pages with reports the explorer, which makes their pictures interactive."""
    if page == "index" or page.startswith("notebooks/"):
        for name in SCRIPTS:
            app.add_js_file(name, loading_method="defer")
        app.add_css_file("explorer.css")


def _take_text(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Give a page the text that lies outside of docs/, and let its links lead to pages."""
    if docname in OUTSIDE:
        source[0] = (ROOT / OUTSIDE[docname]).read_text(encoding="utf-8")
    source[0] = relocated(source[0])


def _relocate_included(_app: Sphinx, _path: Path, _parent: str, source: list[str]) -> None:
    source[0] = relocated(source[0])


def relocated(text: str) -> str:
    """Turn links to files of the repository into links to the pages that show them."""
    for page, name in OUTSIDE.items():
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(name)}", f"](/{page}.md", text)
    text = re.sub(r"\]\((?:\.\./)*notebooks/", "](/notebooks/", text)
    return re.sub(r"\]\((?:docs/|\.\./docs/)", "](/", text)


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    _stage_notebooks()
    app.connect("source-read", _take_text)
    app.connect("include-read", _relocate_included)
    app.connect("html-page-context", _add_explorer)
    app.add_directive("live-report", LiveReport)
