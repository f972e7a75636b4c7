"""Liger-Kernel's benchmarks, run on the virtual cards that their authors had.

The project publishes what each benchmark had allocated at most, in MB with decimals: kernels of its
own in Triton, and the same in torch or transformers. Each row is run by the authors' own script and
kernels, as they were in the commit that published it. They are read from a clone, and not copied.
Benchmarks of speed, which their scripts run before, run here as well: cuBLAS's workspaces and
cached blocks stay behind.
https://github.com/linkedin/Liger-Kernel/tree/main/benchmark
"""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nbmem import virtual
from tests.other_cards.rows import Compared, summary

CLONE = "LIGER_KERNEL_CLONE"
"""Environment variable with the path of a clone with its history."""
COMMIT = "ead96b618e5c67bddc6a6e9bcb99bfe6b5ab661c"
SOURCE = f"[Liger-Kernel's benchmarks](https://github.com/linkedin/Liger-Kernel/tree/{COMMIT}/benchmark/data)"
FIGURE = "`max_memory_allocated`"
IN_CHUNKS = re.compile("_loss($|_)")
"""Names of losses in chunks, which torch.compile compiles."""
WHY = "what ran before in their process; releases of torch and transformers"
WHY_IN_CHUNKS = "what their torch.compile kept of earlier benchmarks; releases of torch"
TABLES = ("all_benchmark_data", "all_benchmark_data_cutile", "all_benchmark_data_cutedsl")
OTHER_LANGUAGES = ("cutile", "cutedsl")
"""Kernels in languages whose packages need a card."""
FILES = ("src", "benchmark/scripts", ":(glob)test/**/*.py")
"""What of the repository scripts import."""
MB = 1 << 20
CALLS = 3
"""Calls of which the median is taken, where theirs are 10: from the second on they are alike."""
MOST_MISSING = 50
"""Names that a script may miss in the packages of today."""


@dataclass(frozen=True)
class Row:
    """A row of a table: one kernel's benchmark, with one size.

    Attributes:
        metric: What was measured: `memory` or `speed`.
        provider: Whose kernel it is: `liger`, `torch`, `huggingface` and others.
        mode: `forward`, `backward` or `full`.
        x: The size that varies, or a name.
        config: What else the script is given, as JSON.
        measured: Bytes that were allocated at most; None for a row of speed.
    """

    metric: str
    provider: str
    mode: str
    x: int | float | str
    config: str
    measured: int | None


@dataclass(frozen=True)
class Benchmark:
    """All rows that one script gave on one card.

    Attributes:
        kernel: The benchmark's name.
        card: The card's name.
        commit: The commit that published the rows.
        table: The table's name.
        rows: The rows, in the order of the table, which is that of their run.
    """

    kernel: str
    card: str
    commit: str
    table: str
    rows: tuple[Row, ...]


def lines(rows: Iterable[Compared]) -> list[str]:
    """Format the lines of each card: kernels, and losses that torch.compile compiles in chunks."""
    kernels, losses = [], []
    for row in rows:
        (losses if IN_CHUNKS.search(row.name.split()[0]) else kernels).append(row)
    return [
        *summary(f"{SOURCE}, kernels", FIGURE, WHY, kernels),
        *summary(f"{SOURCE}, losses in chunks", FIGURE, WHY_IN_CHUNKS, losses),
    ]


def clone() -> Path | None:
    """Return the clone that the environment names, or None."""
    found = os.environ.get(CLONE)
    return Path(found) if found else None


def benchmarks() -> list[Benchmark]:
    """Read the tables."""
    return [one for table in TABLES for one in _benchmarks(table)]


def _benchmarks(table: str) -> list[Benchmark]:
    path = f"benchmark/data/{table}.csv"
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for line in _lines(COMMIT, path):
        groups[_key(line)].append(_row(line))
    commits: dict[tuple[str, ...], str] = {}
    for commit in _git("log", "--format=%H", "--reverse", COMMIT, "--", path).split():
        for key in {_key(line) for line in _lines(commit, path)} & set(groups):
            commits.setdefault(key, commit)
    found = [
        Benchmark(
            kernel=key[0], card=key[1], commit=commits[key], table=table, rows=_runnable(rows)
        )
        for key, rows in sorted(groups.items())
    ]
    return [one for one in found if any(row.measured is not None for row in one.rows)]


def _runnable(rows: list[Row]) -> tuple[Row, ...]:
    return tuple(r for r in rows if not any(name in r.provider for name in OTHER_LANGUAGES))


def _lines(commit: str, path: str) -> list[dict[str, str]]:
    try:
        text = _git("show", f"{commit}:{path}")
    except subprocess.CalledProcessError:  # a commit that deleted it
        return []
    return list(csv.DictReader(io.StringIO(text)))


def _key(line: dict[str, str]) -> tuple[str, ...]:
    return line["kernel_name"], line["gpu_name"], line["liger_version"], line["timestamp"][:10]


def _row(line: dict[str, str]) -> Row:
    metric = line["metric_name"]
    return Row(
        metric=metric,
        provider=line["kernel_provider"],
        mode=line["kernel_operation_mode"],
        x=_number(line["x_value"]),
        config=line["extra_benchmark_config_str"],
        measured=round(float(line["y_value_50"]) * MB) if metric == "memory" else None,
    )


def _number(text: str) -> int | float | str:
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def _git(*arguments: str) -> str:
    path = clone()
    assert path is not None
    command = ["git", "-C", str(path), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def run(benchmark: Benchmark) -> list[Compared]:
    """Run a script's rows on the virtual card. It becomes this process's only one."""
    warnings.simplefilter("ignore")
    os.environ["LIGER_BENCH_PROVIDER_TAG"] = ""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        virtual.activate(benchmark.card, conf="", defer=True)
        try:
            _extract(benchmark.commit, root)
            with redirect_stdout(io.StringIO()):
                functions, run_input = _bench_functions(benchmark.kernel, root)
                found = [_run_row(row, functions, run_input) for row in benchmark.rows]
        except Exception as err:  # noqa: BLE001 - one script that cannot run is some rows
            found = [(0, _first_line(err))] * len(benchmark.rows)
        finally:
            virtual.deactivate()
    return [
        Compared(
            name=f"{benchmark.kernel} {row.provider} {row.mode} {row.x}",
            card=benchmark.card,
            measured=row.measured,
            said=said,
            error=error,
        )
        for row, (said, error) in zip(benchmark.rows, found, strict=True)
        if row.measured is not None
    ]


def _extract(commit: str, root: Path) -> None:
    """Write what scripts import of a commit's files into a folder."""
    command = ["git", f"--git-dir={_git('rev-parse', '--absolute-git-dir').strip()}"]
    command += [f"--work-tree={root}", "checkout", commit, "--", *FILES]
    index = {"GIT_INDEX_FILE": str(root / "index")}  # the clone's own stays as it is
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **index})
    # Their scripts ask for the installed release.
    metadata = root / "src/liger_kernel-0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: liger-kernel\nVersion: 0\n", encoding="utf-8")


def _bench_functions(kernel: str, root: Path) -> tuple[dict[str, Any], Any]:
    """Return a script's functions by what they measure, and the class of their argument."""
    scripts = root / "benchmark/scripts"
    sys.path[:0] = [str(scripts), str(root / "src"), str(root)]
    import utils  # type: ignore[import-not-found]  # theirs

    found: dict[tuple[str, str], Any] = {}

    def run_benchmarks(*, bench_test_fn: Any, kernel_name: str, metric_name: str, **_: Any) -> None:
        found[kernel_name, metric_name] = bench_test_fn

    utils.run_benchmarks = run_benchmarks
    utils._test_memory.__defaults__ = (CALLS, *utils._test_memory.__defaults__[1:])
    script = _script_of(kernel, scripts)
    sys.argv = [str(script)]
    _supply_missing_names(lambda: runpy.run_path(str(script), run_name="__main__"))
    if "triton" in sys.modules:
        sys.modules["triton"].testing.do_bench = _call_once
    functions = {metric: one for (name, metric), one in found.items() if name == kernel}
    return functions, utils.SingleBenchmarkRunInput


def _call_once(function: Callable[[], object], **options: Any) -> Any:
    """Stand in for Triton's measurement of time, which calls a function many times."""
    function()
    quantiles = options.get("quantiles")
    return [0.0] * len(quantiles) if quantiles else 0.0


class _MissingName(str):
    """An empty text that stands for a name which a package no longer has.

    Those that scripts miss are texts and decorators of documentation in transformers.
    """

    __slots__ = ()

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        first = arguments[0] if arguments else None
        return first if isinstance(first, (types.FunctionType, type)) else self


def _supply_missing_names(execute: Callable[[], object]) -> None:
    """Execute a script, again as long as a name in a module of another package is missing."""
    for _ in range(MOST_MISSING):
        try:
            execute()
        except ImportError as err:
            module = sys.modules.get(err.name or "")
            name = re.match("cannot import name '(\\w+)'", str(err))
            if module is None or name is None:
                raise
            setattr(module, name.group(1), _MissingName())
        else:
            return


def _script_of(kernel: str, scripts: Path) -> Path:
    paths = sorted(scripts.glob("benchmark_*.py"))
    quoted = [path for path in paths if f'"{kernel}"' in path.read_text(encoding="utf-8")]
    if quoted:
        return quoted[0]
    within = [path for path in paths if path.stem.removeprefix("benchmark_") in kernel]
    return max(within, key=lambda path: len(path.stem))


def _run_row(row: Row, functions: dict[str, Any], run_input: Any) -> tuple[int, str]:
    """Return the bytes of a row and an empty text, or why it cannot run."""
    try:
        config = {k: _decoded(v) for k, v in json.loads(row.config).items()}
        provider = row.provider.replace("liger_triton", "liger")
        found = functions[row.metric](run_input(row.x, provider, row.mode, config))
        return (round(found.y_50 * MB) if row.measured is not None else 0), ""
    except Exception as err:  # noqa: BLE001 - one row that cannot run is a row of the table
        return 0, _first_line(err)
    finally:
        torch._dynamo.reset()  # what a compilation that failed holds is another in each release
        gc.collect()


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


def _first_line(err: BaseException) -> str:
    return f"{type(err).__name__}: {err}".splitlines()[0]
