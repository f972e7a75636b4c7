"""Private files name nothing of their author and keep all figures."""

from __future__ import annotations

import base64
import gzip
import io
import json
import lzma
import pickletools
import re
import sys
import zipfile
import zlib
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.core.session import privacy
from nbmem.core.session.events import Frame
from nbmem.core.session.oom import Refusal
from nbmem.core.session.privacy import private_session
from nbmem.core.session.ranks import Rank
from nbmem.core.session.session import Session, Source
from nbmem.frontends.cli import main
from nbmem.report.analysis import build_report, card_ledger_of
from nbmem.views.exports import FORMATS
from tests.forked_command import run_forked
from tests.recorded_runs import load, session_of

USER, HOST = "zaphodq", "heart-of-gold"
SECRETS = (USER, HOST, "4194711", "trillian", "magrathea", "slartibartfast = ")
"""A user, a host, a PID, another user's process, a server, a line of source."""
SCRIPT = """\
import helper
slartibartfast = torch.nn.Linear(256, 256).cuda()
kept = {path: torch.zeros(1 << 20, device="cuda")}
opt = torch.optim.Adam(slartibartfast.parameters())
for _ in range(2):
    slartibartfast(torch.ones(64, 256, device="cuda")).sum().backward()
    helper.step(opt)
    opt.zero_grad()
"""
HELPER = "def step(opt):\n    opt.step()\n"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Record a run whose author's names appear everywhere."""
    folder = tmp_path_factory.mktemp("tells")
    home = folder / "home" / USER
    project = home / "secret project"
    project.mkdir(parents=True)
    (project / "helper.py").write_text(HELPER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("USERPROFILE", str(home))
        patch.setattr(privacy.socket, "gethostname", lambda: f"{HOST}.example")
        patch.setattr(privacy.getpass, "getuser", lambda: USER)
        patch.syspath_prepend(str(project))
        patch.chdir(project)
        session = recorded(project)
        yield with_identifying_text(session, project)
        sys.modules.pop("helper", None)


def recorded(project):
    names = {"torch": torch, "path": str(project / "model.pt")}
    file = project / "train.py"
    file.write_text(SCRIPT)
    with virtual.activated("T4"):
        trace = nbmem.trace(f"{USER} trains", stacks=True, namespace=names)
        with trace:
            exec(compile(SCRIPT, str(file), "exec"), names)
    return trace.session


def with_identifying_text(session: Session, project) -> Session:
    (device,) = session.devices
    file = project / "train.py"
    return replace(
        session,
        devices=(replace(device, other_processes={"trillian.ipynb (python, 4194711)": 5 << 20}),),
        error=f"OSError: [Errno 2] no '{file}', http://magrathea:8888/?token=1, process 4194711",
        notes=(*session.notes, f"{USER}@{HOST} lost /srv/{USER}/x.pt and {project}."),
        refusals=(
            Refusal(
                t_ns=session.created_ns, device=0, wanted=1 << 30, free=0, limit=None,
                allocated=None, reserved=None, stack=(Frame(str(file), 3, "<module>"),),
                layer=None, operator=None, progress=None, evaluating=False,
                thread=f"{USER}'s thread",
            ),
        ),
        source=Source(str(file), tuple(SCRIPT.splitlines())),
        rank=Rank(
            number=0, world=1, host=HOST, pid=4194711, run=f"run-{USER}", card="GPU-1", started_ns=1
        ),
    )  # fmt: skip


def layers(data: bytes):
    """Yield every byte string in a file, unpacked."""
    yield data
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                yield entry.filename.encode()
                yield from layers(archive.read(entry))
        return
    for unpack in (zlib.decompress, gzip.decompress, lzma.decompress):
        with suppress(Exception):
            yield from layers(unpack(data))
    with suppress(Exception):
        yield repr(json.loads(data)).encode("utf-8", "replace")
    if data[:1] == b"\x80":
        yield from (str(found).encode() for _, found, _ in pickletools.genops(data))
    for found in re.findall(rb"[A-Za-z0-9+/=]{64,}", data):
        with suppress(Exception):
            yield from layers(base64.b64decode(found, validate=True))


def secrets_in(data: bytes) -> set[str]:
    """Return the secrets found in a file, in any encoding."""
    found = set()
    for layer in layers(data):
        low = layer.lower()
        for secret in SECRETS:
            if any(secret.encode(code) in low for code in ("utf-8", "utf-16-le")):
                found.add(secret)
    return found


def written(session, folder, **options):
    """Write a recording in every format."""
    folder.mkdir()
    trace = nbmem.trace(session.name)
    trace.session = session
    yield "nbmem", trace.save(folder / "run", **options)
    for known in FORMATS:
        yield known.name, trace.export(known.name, folder / known.name, **options)


def test_no_private_file_of_any_format_tells_of_its_author(told, tmp_path):
    public = {name: secrets_in(path.read_bytes()) for name, path in written(told, tmp_path / "all")}
    assert public["nbmem"] == set(SECRETS), "the search finds what there is"
    assert all(USER in public[name] for name in ("html", "json", "csv", "snapshot"))
    for name, path in written(told, tmp_path / "private", private=True):
        assert secrets_in(path.read_bytes()) == set(), name


def test_the_command_line_writes_them_too(told, tmp_path):
    trace = nbmem.trace(told.name)
    trace.session = told
    path = trace.save(tmp_path / "run")
    out = tmp_path / "out"
    assert (
        main(
            ["report", str(path), "--quiet", "--private", "--json", f"{out}1", "--html", f"{out}2"]
        )
        == 0
    )
    assert main(["export", "csv", str(path), f"{out}3", "--private"]) == 0
    assert [secrets_in((tmp_path / f"out{n}").read_bytes()) for n in (1, 2, 3)] == [set()] * 3


def test_a_script_is_run_and_saved_privately(tmp_path):
    home = tmp_path / USER
    home.mkdir()
    script = home / "train.py"
    script.write_text("import torch\nx = torch.ones(1 << 20, device='cuda')\n")
    files = {name: tmp_path / f"run.{name}" for name in ("nbmem", "json")}
    words = ["run", script, "--gpu", "T4", "--stacks", "--private"]
    words += ["--save", files["nbmem"], "--json", files["json"]]
    env = {"HOME": str(home), "USERPROFILE": str(home)}
    done = run_forked([*map(str, words)], tmp_path, env, timeout=300)
    assert done.returncode == 0, done.stderr
    assert secrets_in(done.stdout.encode()) == set()
    assert [secrets_in(path.read_bytes()) & {USER} for path in files.values()] == [set()] * 2
    session = nbmem.open(files["nbmem"]).session
    names = {frame.file for stack in session.stacks for frame in stack}
    assert "train.py" in names
    assert not [name for name in names if name.startswith(("/", "..", "~"))]


@pytest.mark.parametrize("name", ["resnet50_b32_sgdm", "lstm_lm_b32s128_sgd"])
def test_figures_stay_to_the_byte(name):
    session = session_of(load(name))
    assert_same_ledgers(session, private_session(session))


def test_figures_and_names_of_what_tells_stay_too(told, tmp_path):
    trace = nbmem.trace(told.name)
    trace.session = told
    opened = nbmem.open(trace.save(tmp_path / "run", private=True)).session
    assert_same_ledgers(told, opened)
    (device,) = opened.devices
    assert dict(device.other_processes) == {"another process (1)": 5 << 20}
    names = {re.sub(r"'/.*/", "'", name) for name in told.names}
    assert set(opened.names) == names, "names stay as they are, but for a path in one"
    assert any(name.startswith("slartibartfast.weight") for name in names)
    rows = build_report(opened).lines
    assert (rows.file, {row.text for row in rows.rows}) == ("train.py", {""})
    assert [(r.number, r.peak) for r in rows.rows] == [
        (r.number, r.peak) for r in build_report(told).lines.rows
    ]


def assert_same_ledgers(session, other):
    one, two = card_ledger_of(session), card_ledger_of(other)
    positions = np.arange(0, one.events + 1, 7)
    assert np.array_equal(one.held(positions), two.held(positions))
    assert np.array_equal(one.category, two.category)
    for position in positions[::29].tolist():
        assert one.ledger(position) == two.ledger(position)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/home/x/.venv/lib/python3.12/site-packages/torch/nn/m.py", "site-packages/torch/nn/m.py"),
        ("C:\\Users\\x\\Lib\\site-packages\\torch\\o.py", "site-packages/torch/o.py"),
        ("/usr/lib/python3.12/threading.py", "python/lib/python3.12/threading.py"),
        ("/home/x/code/nbmem/probes/cuda.py", "site-packages/nbmem/probes/cuda.py"),
        ("/tmp/ipykernel_4711/123.py", "cells/ipykernel_0/123.py"),
        ("/tmp/torchinductor_x/ab/cab.py", "cache/torchinductor_hidden/cab.py"),
        ("<ipython-input-3-cell>", "<ipython-input-3-cell>"),
        ("/proj/train.py", "train.py"),
        ("/proj/models/net.py", "models/net.py"),
        ("/elsewhere/net.py", "net.py"),
        ("/other/net.py", "2/net.py"),
        ("D:\\work\\net.py", "3/net.py"),
        ("../x/util.py", "util.py"),
        ("pkg/util.py", "pkg/util.py"),
    ],
)
def test_a_file_keeps_what_says_whose_it_is(file, name):
    session = session_of(load("lstm_lm_b32s128_sgd"))
    before = ["/proj/train.py", "/elsewhere/net.py", "/other/net.py", "/elsewhere/net.py"]
    stacks = (tuple(Frame(one, 1, "f") for one in (*before, file)),)
    told = replace(session, stacks=stacks, source=Source("/proj/train.py"))
    frames = private_session(told).stacks[0]
    assert frames[-1].file == name
    assert frames[1].file == frames[3].file


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "see https://docs.pytorch.org/docs/stable/x.html#a",
            "see https://docs.pytorch.org/docs/stable/x.html#a",
        ),
        ("10 GiB/s and/or 3/4 of it", "10 GiB/s and/or 3/4 of it"),
        ("No such file: '/data/of/me/x.pt'.", "No such file: 'x.pt'."),
        ("C:\\Users\\Me\\x.pt is gone", "x.pt is gone"),
        ("/home/x/ is full", "hidden is full"),
        ("Process 4711 has 5.00 GiB memory in use", "Process 0 has 5.00 GiB memory in use"),
        ("this process holds 4711 B", "this process holds 4711 B"),
        ("ws://10.0.0.7:99/x failed", "hidden failed"),
        ("no 'C:\\\\Users\\\\Me\\\\My Project\\\\x.pt'", "no 'x.pt'"),
    ],
)
def test_a_sentence_keeps_what_tells_nothing(text, left):
    session = replace(session_of(load("lstm_lm_b32s128_sgd")), notes=(text,))
    assert private_session(session).notes == (left,)


def test_what_has_no_private_form_is_refused(tmp_path, capsys):
    script = tmp_path / "x.py"
    script.write_text("")
    folder = f"{tmp_path}/ranks/"
    for line in (
        ["run", str(script), "--private", "--save", folder],
        ["export", "html", "a.ipynb", "b", "--private"],
    ):
        assert main(line) == 2
        assert "privately: --private is for the recording of one process" in capsys.readouterr().err
    assert not (tmp_path / "ranks").exists()
