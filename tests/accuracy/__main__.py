"""Print the accuracy table: `python -m tests.accuracy [NAME ...]`.

Errors are signed, in percent of what the card recorded. Beside the virtual card stand the baselines
of tests/accuracy/baselines.py on the same runs.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TRACES = Path(__file__).parents[1] / "recordings" / "traces"
MIB = 1 << 20
FIGURES = {
    "peak_allocated": "peak allocated",
    "peak_reserved": "peak reserved",
    "process": "process",
}
BASELINES = {
    "shapes": "shape inference",
    "tracker": "torch's MemTracker, fake tensors",
    "x4": "four times the parameters (accelerate)",
}
MARGIN = 1.02
"""An estimate is taken as a cap with this margin; above it the run would have failed."""


def recorded(name: str) -> dict[str, Any]:
    return json.loads(lzma.open(TRACES / f"{name}.json.xz").read())


def run_module(module: str, name: str) -> dict[str, Any]:
    """Run a module for a workload; return its JSON or {"error": line}."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.accuracy.{module}", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def peak_phase(bounds: list[dict[str, Any]]) -> str:
    return max(bounds, key=lambda bound: bound["peak_allocated"])["end_of"]


def compare(name: str, *, baselines: bool) -> dict[str, Any]:
    """Return signed errors in percent."""
    real, guess = recorded(name)["bounds"], run_module("one", name)
    if "error" in guess:
        return {"name": name, **guess}
    row: dict[str, Any] = {"name": name, "seconds": guess["seconds"]}
    for key in FIGURES:
        was, is_ = (max(b[key] for b in bounds) for bounds in (real, guess["bounds"]))
        row[key] = 100 * (is_ - was) / was
        row[f"{key}_mib"] = was / MIB
    row["phase"] = peak_phase(real)
    row["phase_right"] = row["phase"] == peak_phase(guess["bounds"])
    if baselines:
        was = max(b["peak_allocated"] for b in real)
        guesses = run_module("baselines", name)
        for key, label in BASELINES.items():
            value = guesses.get(key)
            row[key] = 100 * (value - was) / was if isinstance(value, int) else None
            if row[key] is None:
                row["why"] = f"{label}: {value or guesses['error']}"
    return row


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}%"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Format one line for each run."""
    lines = [
        (
            "| run | allocated, MiB | predicted | reserved, MiB | predicted | process | peak in | "
            "shapes | MemTracker | x4 |"
        ),
        "|---|--:|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| `{row['name']}` | did not run: {row['error'][:120]} |||||||||")
            continue
        phase = row["phase"] + ("" if row["phase_right"] else " (predicted elsewhere)")
        others = " | ".join(percent(row.get(key)) for key in BASELINES)
        lines.append(
            f"| `{row['name']}` | {row['peak_allocated_mib']:,.1f} | "
            f"{percent(row['peak_allocated'])} | {row['peak_reserved_mib']:,.0f} | "
            f"{percent(row['peak_reserved'])} | {percent(row['process'])} | {phase} | {others} |"
        )
    return lines


def summary_line(label: str, errors: list[float], of: int) -> str:
    absolute = sorted(abs(error) for error in errors)
    high = absolute[max(0, -(-95 * len(absolute) // 100) - 1)]
    # The estimate is (100 + error)% of the truth.
    under = sum((100 + error) * MARGIN < 100 for error in errors)
    missing = "" if len(errors) == of else f" ({len(errors)} of the runs)"
    return (
        f"| {label}{missing} | {statistics.mean(absolute):.2f}% | "
        f"{statistics.median(absolute):.2f}% | {high:.2f}% | {absolute[-1]:.2f}% | "
        f"{100 * under / len(errors):.0f}% |"
    )


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Summarize errors: mean, median, 95th percentile and worst."""
    ran = [row for row in rows if "error" not in row]
    lines = [
        f"| absolute error over {len(ran)} runs | mean | median | 95% | worst | too low |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    labels = {**FIGURES, **{key: f"baseline: {label}" for key, label in BASELINES.items()}}
    for key, label in labels.items():
        errors = [row[key] for row in ran if row.get(key) is not None]
        if errors:
            lines.append(summary_line(label, errors, len(ran)))
    right = sum(row["phase_right"] for row in ran)
    lines.append(f"\nThe peak's phase is the recorded one in {right} of {len(ran)} runs.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no-baselines", action="store_true", help="the virtual card alone")
    options = parser.parse_args()
    every = sorted(path.name.removesuffix(".json.xz") for path in TRACES.glob("*.json.xz"))
    names = options.names or every
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda name: compare(name, baselines=not options.no_baselines), names))
    reasons = [f"- `{row['name']}`, {row['why']}" for row in rows if "why" in row]
    lines = [*summary(rows), "", *table(rows), "", *reasons]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
