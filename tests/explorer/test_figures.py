"""The pictures hold only what the front end lets through."""

import json
import re
from pathlib import Path

import pytest

from nbmem.views.explorer.output import MIME
from nbmem.views.mime_bundle import mimebundle
from tests.views import sample_reports as sample

pytest.importorskip("bokeh", reason="Bokeh is not installed")

EXPLORER = Path(__file__).parents[2] / "labextension" / "src" / "explorer"
GUARD, WRITTEN = EXPLORER / "figures.ts", EXPLORER / "figures.json"


def models(node):
    if isinstance(node, list):
        return {name for child in node for name in models(child)}
    if not isinstance(node, dict):
        return set()
    mine = {node["name"]} if node.get("type") == "object" else set()
    return mine | {name for child in node.values() for name in models(child)}


def kinds(node):
    if isinstance(node, list):
        return {kind for child in node for kind in kinds(child)}
    if not isinstance(node, dict):
        return set()
    mine = {node["type"]} if "type" in node else set()
    return mine | {kind for child in node.values() for kind in kinds(child)}


def names_in_guard(name):
    text = re.search(rf"const {name} = new Set\((.*?)\);", GUARD.read_text(), re.DOTALL)
    return set(re.findall(r"\w+", "".join(re.findall(r"'([^']*)'", text[1]))))


def test_the_front_end_knows_every_model_of_this_bokeh():
    figures = dict(json.loads(WRITTEN.read_text()))
    assert set(figures) == {"timeline", "holders", "phases", "growth", "pool"}
    for text in figures.values():
        document = json.loads(text)
        assert models(document) <= names_in_guard("MODELS")
        assert not any(model.startswith("CustomJS") for model in models(document))


def test_the_bundle_has_the_explorer_beside_html_and_text():
    bundle = mimebundle(sample.cnn())
    assert set(bundle) == {MIME, "text/html", "text/plain"}
    assert "script" not in bundle["text/html"]
    assert len(json.dumps(bundle)) < 160 * 1024
