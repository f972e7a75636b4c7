"""HTML of reports: structure, safety and escaping."""

import base64
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from nbmem.views.explorer.output import MIME
from nbmem.views.explorer.size_limit import saved_output
from nbmem.views.html import render_html, render_page
from nbmem.views.mime_bundle import mimebundle
from nbmem.views.palette import COLOURS
from nbmem.views.rows import ledger_rows
from nbmem.views.text import render_text
from tests.views import sample_reports as sample

KEPT_TAGS = {
    *("b", "div", "span", "img", "ul", "li", "details", "summary", "pre"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
}
KEPT_ATTRIBUTES = {
    *("style", "title", "src", "alt", "width", "height", "scope", "colspan"),
}
"""What JupyterLab's sanitizer keeps in an untrusted notebook, as far as the views use it."""
KEPT_STYLES = {
    *("align-items", "background-color", "background-image", "background-size", "border"),
    *("border-bottom", "border-collapse", "border-left", "border-radius", "border-top"),
    *("box-sizing", "color", "cursor", "display", "flex", "flex-wrap", "font-family"),
    *("font-size", "font-style"),
    *("font-weight", "gap", "height", "line-height", "margin", "max-width", "min-width"),
    *("opacity", "overflow-x", "padding", "table-layout", "text-align", "vertical-align"),
    *("white-space", "width"),
}


class Reader(HTMLParser):
    """Collects tags with their attributes and checks that they nest."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"img", "meta"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def pictures(html):
    """The pictures in a fragment, as SVG text."""
    prefix = "data:image/svg+xml;base64,"
    sources = [image["src"] for image in Reader(html).all("img")]
    assert all(source.startswith(prefix) for source in sources)
    return [base64.b64decode(source.removeprefix(prefix)).decode() for source in sources]


@pytest.mark.parametrize("name", sample.ALL)
def test_an_untrusted_notebook_keeps_all_of_the_fragment(name):
    reader = Reader(render_html(sample.ALL[name]()))
    assert {tag for tag, _ in reader.tags} <= KEPT_TAGS
    assert {key for _, attributes in reader.tags for key in attributes} <= KEPT_ATTRIBUTES
    for _, attributes in reader.tags:
        for rule in filter(None, attributes.get("style", "").split(";")):
            key, value = rule.split(":")
            assert key in KEPT_STYLES
            assert "(" not in value or re.match(r"linear-gradient|.*rgba", value)


@pytest.mark.parametrize("render", [render_html, render_page])
@pytest.mark.parametrize("name", sample.ALL)
def test_nothing_is_loaded_or_run(name, render):
    html = render(sample.ALL[name]())
    reader = Reader(html)
    assert not {tag for tag, _ in reader.tags} & {"script", "svg", "link", "iframe", "object"}
    for tag, attributes in reader.tags:
        assert not any(key.startswith("on") for key in attributes), tag
        assert "href" not in attributes
    for text in (*(a.get("style", "") for _, a in reader.tags), *pictures(html)):
        assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"url\((?!#)|@import", text)


@pytest.mark.parametrize("name", sample.ALL)
def test_pictures_are_well_formed_and_keep_their_place(name):
    html = render_html(sample.ALL[name]())
    for image, svg in zip(Reader(html).all("img"), pictures(html), strict=True):
        root = ET.fromstring(svg)
        assert {"rect", "text"} <= {element.tag.split("}")[1] for element in root.iter()}
        assert image["width"] == root.get("width")
        assert image["height"] == root.get("height")
        assert "max-width:100%" in image["style"]
        assert len(image["alt"]) > 40


def test_names_that_contain_markup_are_shown_and_not_obeyed():
    html = render_page(sample.hostile())
    for text in (html, *pictures(html)):
        assert not re.search(r"<script|<img src=x", text)
        assert "\x1b" not in text
        assert "\x00" not in text
    shown = "".join(Reader(html).words)
    assert shown.count('<script>alert("1")</script>') >= 7


def test_pictures_say_their_facts_in_words():
    timeline, card = (image["alt"] for image in Reader(render_html(sample.cnn())).all("img"))
    assert "peak of 1.13 GiB in backward, step 1" in timeline
    assert "activations 700.0 MiB" in timeline
    assert card.startswith("The card at the peak: this process holds 1.76 GiB of 79.18 GiB.")


def test_the_tables_are_those_of_the_text_with_the_colours_of_the_picture():
    report = sample.cnn()
    html = render_html(report)
    shown = "".join(Reader(html).words).replace("\N{BLACK SQUARE}", " ")
    for block in render_text(report).split("\n\n")[1:]:
        if not block.startswith("- "):
            assert block in shown
    for row in ledger_rows(report):
        marked = f"color:{COLOURS[row.category]}" if row.category is not None else row.label
        assert marked in html


@pytest.mark.parametrize("name", sample.ALL)
def test_a_notebook_keeps_short_lines_beside_the_pictures(name):
    html = re.sub('data:image/svg[^"]*', "", render_html(sample.ALL[name]()))
    assert max(map(len, html.splitlines())) < 2000
    assert len(html) < 12_000


def test_an_unknown_process_is_unknown_in_html_too():
    html = render_html(sample.without_process())
    assert "the driver does not say" in html
    assert "context and others" in html
    assert "reserved by torch" in "".join(pictures(html))


def test_the_limit_is_drawn_only_when_it_is_near():
    assert (
        "the card is full at 2.69 GiB reserved" in pictures(render_html(sample.out_of_memory()))[0]
    )
    assert "the card is full" not in pictures(render_html(sample.cnn()))[0]


def test_the_picture_of_a_slower_run_is_the_same():
    report = sample.cnn()
    moments = report.timeline
    slow = replace(
        report,
        duration_ns=3 * report.duration_ns,
        timeline=replace(
            moments,
            t_ns=3 * moments.t_ns,
            bands=tuple((3 * t0, 3 * t1, *named) for t0, t1, *named in moments.bands),
        ),
    )
    assert pictures(render_html(slow)) == pictures(render_html(report))


def test_a_report_without_curves_still_shows_the_card():
    assert len(pictures(render_html(sample.nothing_happened()))) == 1


def test_a_page_stands_alone():
    page = render_page(sample.cnn())
    assert page.startswith("<!DOCTYPE html>\n<html")
    assert "<title>nbmem: cell [3]</title>" in page
    assert "prefers-color-scheme: dark" in page
    assert render_html(sample.cnn()) in page


def test_the_bundle_carries_every_reading_and_asks_for_no_bokeh(monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)  # the front end has its own
    report = sample.small()
    assert mimebundle(report) == {
        "text/plain": render_text(report),
        "text/html": render_html(report),
        MIME: saved_output(report),
    }
