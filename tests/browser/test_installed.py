"""The wheel's contents, and JupyterLab's list of extensions."""

import json
import re
import zipfile

import pytest

from tests.browser.server import EXTENSION, ROOT

PLACE = "data/share/jupyter/labextensions/nbmem-labextension/"
MAX_BYTES = 2_800_000
"""2.71 MB, of which BokehJS is 0.37 MB twice: in the extension, and in pages that stand alone."""


@pytest.mark.oldest
def test_jupyterlab_lists_the_extension_as_enabled_and_ok(lab):
    listed = re.sub(r"\x1b\[\d+m", "", lab.jupyter("labextension", "list"))
    assert re.search(r"nbmem-labextension v[\d.]+ enabled OK", listed), listed


def test_the_settings_know_their_version(lab):
    """JupyterLab reads it from the one file of the wheel that looks like a left-over."""
    settings = lab.get("lab/api/settings/nbmem-labextension:sidebar")
    package = json.loads((EXTENSION / "package.json").read_text())
    assert settings["version"] == package["version"]


def test_the_wheel_holds_the_package_and_the_extension_once():
    wheels = list((ROOT / "out" / "wheel").glob("nbmem-*.whl"))
    if not wheels:
        pytest.skip("no wheel has been built: `python3 tools/test.py browser` builds one")
    (wheel,) = wheels
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    inside = {re.sub(r"^nbmem-[^/]*\.", "", name.split("/")[0]) for name in names}
    assert inside == {"nbmem", "data", "dist-info"}
    assert not [name for name in names if name.startswith("nbmem/labextension")]
    assert "nbmem/virtual/cards.toml" in names
    scripts = r"static/((explorer|page|bokeh)\.js|(explorer|viewer)\.css|bokeh\.LICENSE\.txt)"
    data = r"virtual/cards\.toml|language_models/published\.toml|engine/(README\.md|src/[\w/.-]+)"
    allowed = rf"\.py|py\.typed|{data}|{scripts}"
    assert not [n for n in names if n.startswith("nbmem/") and not re.search(f"({allowed})$", n)]
    extension = {name.split(PLACE)[1] for name in names if PLACE in name}
    plain = {re.sub(r"[\w.]+\.js$", "*.js", name) for name in extension}
    assert plain == {
        "install.json",
        "package.json",
        "schemas/nbmem-labextension/package.json.orig",
        "schemas/nbmem-labextension/sidebar.json",
        "static/*.js",
        "static/third-party-licenses.json",
    }
    assert wheel.stat().st_size < MAX_BYTES
