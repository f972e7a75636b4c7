"""A table's rows run by the script of the commit that published them, on the table's card."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="the benchmarks are torch programs")

from tests.other_cards import liger_tables

HEAD = (
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,metric_unit,x_name,x_label,"
    "x_value,y_value_50,y_value_20,y_value_80,extra_benchmark_config_str,gpu_name,timestamp,"
    "liger_version\n"
)
LINE = (
    'add,{provider},{mode},{metric},MB,N,n,{x},{figure},0,0,"{{""dtype"": ""torch.float32""}}",'
    "NVIDIA A100-SXM4-80GB,{day} 10:00:00,{version}\n"
)
UTILS = """
    from dataclasses import dataclass
    from importlib.metadata import version

    import torch
    import {module}

    version("liger-kernel")

    @dataclass
    class SingleBenchmarkRunInput:
        x: object
        kernel_provider: str
        kernel_operation_mode: str
        extra_benchmark_config: dict

    @dataclass
    class SingleBenchmarkRunOutput:
        y_50: float

    def _test_memory(function, _iter=10, quantiles=None):
        for _ in range(_iter):
            torch.cuda.reset_peak_memory_stats()
            function()
        return torch.cuda.max_memory_allocated() / 2**20

    def run_benchmarks(**options):
        raise AssertionError("the rows are run one by one")
"""
SCRIPT = """
    import torch
    from {module} import DOC, document
    from utils import *
    from utils import _test_memory

    kept = []

    @document(DOC)
    def speed(asked):
        kept.append(torch.zeros(2**18, device="cuda"))
        return SingleBenchmarkRunOutput(1.0)

    def memory(asked):
        if asked.kernel_provider == "broken":
            raise RuntimeError("no such kernel")
        dtype = asked.extra_benchmark_config["dtype"]
        x = torch.zeros({times} * asked.x, device="cuda", dtype=dtype)
        return SingleBenchmarkRunOutput(_test_memory(lambda: x + 1))

    for metric, function in (("speed", speed), ("memory", memory)):
        run_benchmarks(bench_test_fn=function, kernel_name="add", metric_name=metric, x_values=[1])
"""
MODULE = "package_without_names"


def _line(metric, provider="liger", *, day="2024-09-03", version="0.2.1", figure=9.0):
    return LINE.format(
        provider=provider, mode="full", metric=metric, x=2**20, figure=figure, day=day,
        version=version,
    )  # fmt: skip


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Make a repository with two commits, each with rows of its own."""
    root = tmp_path / "clone"

    def git(*arguments):
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(root), *settings, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(times, lines):
        for name, text in (
            ("benchmark/data/all_benchmark_data.csv", HEAD + "".join(lines)),
            ("benchmark/scripts/utils.py", textwrap.dedent(UTILS.format(module=MODULE))),
            ("benchmark/scripts/benchmark_add.py",
             textwrap.dedent(SCRIPT.format(times=times, module=MODULE))),
            ("src/liger_kernel/__init__.py", ""),
            ("test/__init__.py", ""),
        ):  # fmt: skip
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        git("add", ".")
        git("commit", "-qm", "rows")
        return git("rev-parse", "HEAD")

    root.mkdir()
    git("init", "-q")
    old = [_line("speed"), _line("memory"), _line("memory", "broken")]
    new = _line("memory", day="2026-01-01", version="0.8.0")
    cutile = _line("memory", "liger_cutile", day="2026-01-01", version="0.8.0")
    first, last = commit(1, old), commit(3, [*old, new, cutile])
    monkeypatch.setenv(liger_tables.CLONE, str(root))
    monkeypatch.setattr(liger_tables, "COMMIT", last)
    (tmp_path / f"{MODULE}.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setenv("LIGER_BENCH_PROVIDER_TAG", "")
    yield first, last
    for name in ("utils", MODULE):
        sys.modules.pop(name, None)


def test_rows_belong_to_the_commit_that_published_them(clone):
    found = liger_tables.benchmarks()
    assert [(one.commit, len(one.rows)) for one in found] == [(clone[0], 3), (clone[1], 1)]
    row = found[0].rows[1]
    assert (row.metric, row.x, row.measured) == ("memory", 2**20, 9 << 20)


def test_a_row_is_run_by_the_script_of_its_commit(clone):
    found = liger_tables.run(liger_tables.benchmarks()[0])
    # The input and the sum of 4 MiB each, and 1 MiB that the row of speed before has left.
    assert [(one.said, one.error) for one in found] == [
        (9 << 20, ""),
        (0, "RuntimeError: no such kernel"),
    ]
    assert found[0].name == f"add liger full {2**20}"


def test_a_later_commit_has_another_script(clone):
    (row,) = liger_tables.run(liger_tables.benchmarks()[1])
    assert (row.said, row.error) == (3 * (8 << 20), "")


def test_a_script_that_fails_is_an_error_of_each_row(clone, monkeypatch):
    monkeypatch.setattr(liger_tables, "MOST_MISSING", 1)
    found = liger_tables.run(liger_tables.benchmarks()[0])
    assert len({one.error for one in found}) == 1
    assert found[0].error.startswith("KeyError")
