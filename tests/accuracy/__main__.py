"""The accuracy table: `python -m tests.accuracy [NAME ...]`; each workload in its own process."""

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


def recorded(name: str) -> dict[str, Any]:
    return json.loads(lzma.open(TRACES / f"{name}.json.xz").read())


def predict(name: str) -> dict[str, Any]:
    """Counters of a virtual run, or {"error": last line}."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.accuracy.one", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(name: str) -> dict[str, Any]:
    """Signed errors in percent."""
    real, guess = recorded(name)["bounds"], predict(name)
    if "error" in guess:
        return {"name": name, **guess}
    row: dict[str, Any] = {"name": name, "seconds": guess["seconds"]}
    for key in ("peak_allocated", "peak_reserved", "process"):
        was, is_ = (max(b[key] for b in bounds) for bounds in (real, guess["bounds"]))
        row[key] = 100 * (is_ - was) / was
        row[f"{key}_mib"] = was / MIB
    pairs = list(zip(guess["bounds"], real, strict=False))
    row["bounds"] = max(abs(g["allocated"] - r["allocated"]) / MIB for g, r in pairs)
    row["exact"] = sum(g["allocated"] == r["allocated"] for g, r in pairs)
    row["of"] = len(real)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| workload | allocated MiB | error | reserved MiB | error | process | exact | worst | s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['name']} | did not run: {row['error'][:120]} |||||||| ")
            continue
        lines.append(
            f"| {row['name']} | {row['peak_allocated_mib']:.1f} | {row['peak_allocated']:+.2f}% | "
            f"{row['peak_reserved_mib']:.0f} | {row['peak_reserved']:+.2f}% | "
            f"{row['process']:+.2f}% | {row['exact']}/{row['of']} | {row['bounds']:.1f} | "
            f"{row['seconds']:.1f} |"
        )
    ran = [row for row in rows if "error" not in row]
    for key in ("peak_allocated", "peak_reserved", "process"):
        if ran:
            errors = [abs(row[key]) for row in ran]
            lines.append(
                f"\n{key}: mean |error| {statistics.mean(errors):.2f}%, "
                f"median {statistics.median(errors):.2f}%, worst {max(errors):.2f}%"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    every = sorted(path.name.removesuffix(".json.xz") for path in TRACES.glob("*.json.xz"))
    names = options.names or every
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(compare, names))
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
