"""The viewer page counts a snapshot's bytes as Python does."""

import json
import lzma
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from nbmem.core.files.snapshot_session import session_of_snapshot
from nbmem.core.session.categories import LIVE, Category
from nbmem.report.analysis import card_ledger_of

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings" / "snapshots"
NAMES = (
    "cuda_graph",
    "expandable",
    "fragmentation",
    "gc",
    "large_seg",
    "max_split",
    "oom",
    "reserved_unused",
    "retry",
    "roundup",
    "streams",
    "train_resnet50",
)
"""Settings of the allocator, private pools, streams, blocks from before the recording."""
ONE_BY_ONE = (
    Category.ROUNDING,
    Category.PENDING,
    Category.CACHED_RELEASABLE,
    Category.CACHED_STUCK,
    Category.FREE,
)


def test_every_moment_has_the_bytes_that_python_counts(tmp_path):
    node, compiled = shutil.which("node"), ROOT / "labextension" / "lib" / "page" / "file.js"
    if node is None or not compiled.is_file():
        pytest.skip("there is no node here, or what it runs is not compiled (npm test)")
    files = [tmp_path / f"{name}.pickle" for name in NAMES]
    for file in files:
        file.write_bytes(lzma.decompress(RECORDINGS.joinpath(f"{file.name}.xz").read_bytes()))
    command = [node, str(ROOT / "labextension" / "tests" / "curves.mjs"), *map(str, files)]
    data = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert len(data) == len(NAMES)
    for one in data:
        card_ledger = card_ledger_of(session_of_snapshot(one["path"]), one["card"])
        table = card_ledger.held(np.array(one["event"], np.int64))
        held = {key: np.array(column) for key, column in one["held"].items()}
        # Which live category it is needs nbmem: the page says unknown, and of how many bytes.
        assert (held["unknown"] == table[:, list(LIVE)].sum(axis=1)).all(), one["path"]
        for category in ONE_BY_ONE:
            assert (held[category.key] == table[:, category]).all(), (one["path"], category)
        followed = card_ledger
        assert one["peak"]["event"] == card_ledger.peak(0, card_ledger.events)
        assert one["peak"]["allocated"] == followed.allocated.max()
        assert one["peak"]["reserved"] == one["total"] == followed.reserved.max()
