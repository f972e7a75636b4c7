"""Run programs by both engines: `python -m tests.oracle --engines [NAME or SCRIPT ...]`.

A name is a workload that a real H100 was recorded with (tests/accuracy), and the record stands
beside both answers. A script is run by `nbmem run`. Each run has a process of its own: its
seconds of the processor and its highest memory on the host are of the whole process, with imports.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from nbmem.core.units import MIB
from nbmem.engine.availability import torch_version
from nbmem.engine.launch import environment
from tests.accuracy.__main__ import TRACES, recorded
from tests.oracle.launch import OUT

ENGINES = ("rules", "torch")
CARD = "H100 80GB"
"""The card of the recordings."""
SETTINGS = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29561"}
HEAD = (
    "| program | allocated, MiB | rules | torch | reserved, MiB | rules | torch | seconds, rules | "
    "torch | host MiB, rules | torch |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


class Answer(NamedTuple):
    """What one engine answered; bytes, seconds of the processor and MiB of the host.

    Attributes:
        error: Why there is no answer; empty with one.
    """

    allocated: int
    reserved: int
    seconds: float
    host: int
    error: str = ""


def measured(command: list[str], env: dict[str, str], out: Path) -> tuple[float, int, str]:
    """Run a command into a file.

    Returns:
        Seconds of the processor, MiB of the host, and the last line of its errors.
    """
    with out.open("w") as stream, out.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(command, env=env, stdout=stream, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    error = ""
    if process.returncode:
        lines = out.with_suffix(".err").read_text().strip().splitlines()
        error = lines[-1][:100] if lines else f"ended with {process.returncode}"
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024, error


def answer(name: str, engine: str, card: str) -> Answer:
    """Return what an engine answers of a workload or a script."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        env = {**os.environ, **SETTINGS}
        if name.endswith(".py"):
            report = Path(folder, "report.json")
            options = ("--engine", engine, "--gpu", card, "--quiet", "--json", str(report))
            command = [sys.executable, "-m", "nbmem", "run", name, *options]
            seconds, host, error = measured(command, env, out)
            if not report.exists():
                return Answer(0, 0, seconds, host, error or "no report")
            peak = json.loads(report.read_text())["peak"]
            return Answer(peak["allocated"], peak["reserved"], seconds, host)
        command = [sys.executable, "-W", "ignore", "-m", "tests.accuracy.one", name]
        command += ["--release", torch_version().partition("+")[0]]
        if engine == "torch":
            command.append("--here")
            env = environment(card) | SETTINGS
        seconds, host, error = measured(command, env, out)
        if error:
            return Answer(0, 0, seconds, host, error)
        bounds = json.loads(out.read_text().strip().splitlines()[-1])["bounds"]
        peaks = (max(b[key] for b in bounds) for key in ("peak_allocated", "peak_reserved"))
        return Answer(*peaks, seconds, host)


def truth(name: str) -> tuple[int, int] | None:
    """Return what the card's allocator counted, peak allocated and reserved, if it was recorded."""
    if name.endswith(".py"):
        return None
    bounds: list[dict[str, Any]] = recorded(name)["bounds"]
    return max(b["peak_allocated"] for b in bounds), max(b["peak_reserved"] for b in bounds)


def figure(value: int, real: int | None) -> str:
    """Format bytes in MiB, or as the error in percent of what was recorded."""
    return f"{value / MIB:,.1f}" if real is None else f"{100 * (value - real) / real:+.2f}%"


def row(name: str, real: tuple[int, int] | None, found: dict[str, Answer]) -> str:
    """Format a line of the table."""
    cells = [f"`{Path(name).stem}`"]
    for at in (0, 1):
        known = None if real is None else real[at]
        cells.append("" if known is None else f"{known / MIB:,.1f}")
        for engine in ENGINES:
            one = found[engine]
            cells.append(one.error if one.error and not at else figure(one[at], known))
    cells += [f"{found[engine].seconds:.1f}" for engine in ENGINES]
    cells += [f"{found[engine].host:,}" for engine in ENGINES]
    return f"| {' | '.join(cells)} |"


def summary(answers: dict[str, tuple[tuple[int, int] | None, dict[str, Answer]]]) -> list[str]:
    """Summarize the rows that both engines answered."""
    ran = [one for one in answers.values() if not any(a.error for a in one[1].values())]
    equal = [sum(found["rules"][at] == found["torch"][at] for _, found in ran) for at in (0, 1)]
    same = f"peak allocated is the same to the byte in {equal[0]}, reserved in {equal[1]}"
    lines = [f"{len(ran)} programs ran on both; {same}."]
    known = [one for one in ran if one[0] is not None]
    for at, label in enumerate(("allocated", "reserved")):
        for engine in ENGINES if known else ():
            errors = [abs(found[engine][at] - real[at]) / real[at] for real, found in known if real]
            lines.append(
                f"{label}, {engine}: mean error {statistics.mean(errors):.2%}, worst "
                f"{max(errors):.2%} of {len(known)} that were recorded."
            )
    for engine in ENGINES:
        seconds = statistics.median(found[engine].seconds for _, found in ran)
        host = statistics.median(found[engine].host for _, found in ran)
        lines.append(f"{engine}: median {seconds:.1f} s, {host:,.0f} MiB of the host.")
    return lines


def run(names: list[str], card: str) -> None:
    """Run each program by both engines; print the table and keep it in a file."""
    every = sorted(path.name.removesuffix(".json.xz") for path in TRACES.glob("*.json.xz"))
    lines, answers = [HEAD], {}
    print(HEAD)
    for name in names or every:
        found = {engine: answer(name, engine, card) for engine in ENGINES}
        answers[name] = (truth(name), found)
        lines.append(row(name, *answers[name]))
        print(lines[-1], flush=True)
    lines += ["", *summary(answers)]
    print("\n".join(lines[-len(summary(answers)) - 1 :]))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "engines.md").write_text("\n".join([*lines, ""]))
