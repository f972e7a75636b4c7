"""The viewer page for recordings, and the data that it draws."""

import json
import zipfile
from dataclasses import replace

import pytest

from nbmem.api import render, tracing
from nbmem.core.files.session import open_session, save_session
from nbmem.frontends.cli import main
from nbmem.views.explorer import explorer_data
from nbmem.views.exports import viewer
from tests.recorded_runs import load, session_of


@pytest.fixture(scope="module")
def trace():
    opened = tracing.Trace("run")
    opened.session = session_of(load("cudagraph_mlp_b512_sgd"))
    return opened


def test_a_recording_holds_what_the_page_draws_of_each_card(trace, tmp_path):
    two = tracing.Trace("two")
    (card,) = trace.session.devices
    other = replace(card, info=replace(card.info, index=3))
    spans = tuple(
        replace(span, first=span.first * 2, last=span.last * 2) for span in trace.session.spans
    )
    two.session = replace(trace.session, devices=(card, other), spans=spans)
    with zipfile.ZipFile(two.save(tmp_path / "two")) as archive:
        for name, device in (("explorer/0.json", None), ("explorer/3.json", 3)):
            data = json.loads(archive.read(name))
            assert data == json.loads(json.dumps(explorer_data(two.report(device))))
            assert not data["history"]  # a recording holds one cell


def test_the_drawing_data_is_small_and_changes_no_other_member(trace, tmp_path):
    bare = save_session(trace.session, tmp_path / "bare.nbmem")
    whole = trace.save(tmp_path / "whole.nbmem")
    assert whole.stat().st_size - bare.stat().st_size < 10_000
    with zipfile.ZipFile(bare) as one, zipfile.ZipFile(whole) as other:
        assert set(other.namelist()) - set(one.namelist()) == {"explorer/0.json"}
        assert all(one.read(name) == other.read(name) for name in one.namelist())
    assert open_session(whole).name == trace.session.name


def test_a_card_that_cannot_be_drawn_is_left_out(trace, tmp_path):
    def fails(device):
        raise MemoryError(device)

    path = render.save(trace.session, tmp_path / "run.nbmem", fails)
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if name.startswith("explorer/")]
    assert open_session(path).name == trace.session.name


def test_the_page_makes_no_request(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["viewer"]) == 0
    assert "wrote nbmem-viewer.html" in capsys.readouterr().err
    page = (tmp_path / "nbmem-viewer.html").read_text()
    assert "default-src &#x27;none&#x27;" in page
    assert "connect-src" not in page
    assert page.count("<script") == 2  # the packed code and its loader
    assert len(page) < 600_000


def test_a_missing_build_of_the_explorer_is_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(viewer, "files", lambda _: tmp_path)
    assert main(["viewer", str(tmp_path / "page.html")]) == 2
    assert "installed without its compiled explorer" in capsys.readouterr().err
