"""Interactive pages: their data, and that they make no request."""

import base64
import html
import json
import re
import zlib
from importlib.resources import files

import pytest

from nbmem.frontends.cli import main
from nbmem.views.explorer import MIME, explorer_output
from nbmem.views.explorer.output import unpacked
from nbmem.views.exports import interactive_page
from nbmem.views.exports.page import explorer_page
from tests.views import sample_reports as sample

BUILT = files("nbmem.views.widget").joinpath("static")


def data_of(page):
    found = re.findall(rf'<script type="{re.escape(MIME)}">(.*?)</script>', page, re.DOTALL)
    return [json.loads(text) for text in found]


@pytest.mark.parametrize("name", sample.ALL)
def test_the_page_holds_the_still_form_and_the_data(name):
    report = sample.ALL[name]()
    page = explorer_page(report)
    assert len(data_of(page)) == 1
    data = unpacked(data_of(page)[0]["data"])
    assert data["verdict"] in html.unescape(page)
    assert "default-src &#x27;none&#x27;" in page


def test_no_report_ends_the_script_that_it_stands_in():
    output = {"version": 2, "data": "</script><script>alert(1)</script>", "times": "<!--"}
    (read,) = data_of(interactive_page.interactive_report("", output))
    assert read == output
    assert interactive_page.interactive_report("", output).count("<script") == 1


def test_the_explorer_is_included_once_and_makes_no_request():
    player = interactive_page.explorer_script()
    packed = re.search(r'id="nbmem-explorer">([^<]*)<', player)[1]
    scripts = [BUILT.joinpath(name).read_bytes() for name in interactive_page.SCRIPTS]
    assert zlib.decompress(base64.b64decode(packed)) == b"\n".join(scripts)
    assert not re.search(r'(src|href)="', player)
    assert len(player) < 600_000
    output = explorer_output(sample.cnn())
    assert "bokeh" not in json.dumps(output).lower()


def test_what_was_not_built_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(interactive_page, "files", lambda _: tmp_path)
    interactive_page.explorer_script.cache_clear()
    try:
        assert "This page is a picture" in explorer_page(sample.cnn())
    finally:
        interactive_page.explorer_script.cache_clear()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["html", "none.ipynb", "out.html"], "There is no notebook none.ipynb."),
        (["csv", "none.ipynb", "out.csv"], "A notebook is exported as html, not as csv."),
    ],
)
def test_a_notebook_that_cannot_be_exported_is_a_sentence(
    words, text, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
