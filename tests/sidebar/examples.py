"""Examples of each message kind; run it to write the golden files."""

from __future__ import annotations

import json
from pathlib import Path

from nbmem.core.session.cell_delta import CellDelta, CellPeak
from nbmem.frontends.sidebar import messages as m
from nbmem.frontends.sidebar import requests as r
from nbmem.frontends.sidebar.message_codec import encode, kind_of
from nbmem.frontends.sidebar.rank_messages import RankNow
from nbmem.report.model import Command, Finding, Moment, Peak

GOLDEN = Path(__file__).parent / "golden"
T0 = 1_700_000_000_000.0
GIB = 1 << 30
H100 = 81_559 << 20

CELL = m.Cell(number=3, cell_id="5f2c-<b>", label="train(<i>model</i>)", traced=True, begun_ms=T0)
SAMPLE = m.Sample(
    t_ms=T0 + 250.5,
    cell=CELL,
    phase="forward",
    step=0,
    cards=(
        m.CardSample(
            index=0,
            name="NVIDIA H100 80GB HBM3",
            virtual=True,
            total=H100,
            allocated=3 * GIB,
            reserved=4 * GIB,
            process=4 * GIB + 500_000_000,
            free=H100 - 5 * GIB,
            driver=GIB // 4,
            peak=3 * GIB + 512,
            peak_exact=True,
            by_category=(
                ("weights", "weights", GIB),
                ("optimizer_state", "optimizer state", GIB),
                ("rest", "the rest", GIB),
            ),
            frameworks=(
                ("frameworks", "CuPy", 100_000_000),
                ("frameworks_cached", "CuPy, cached", 200_000_000),
            ),
        ),
        m.CardSample(
            index=1,
            name=None,
            virtual=False,
            total=None,
            allocated=0,
            reserved=2 << 20,
            process=None,
            free=None,
            driver=0,
            peak=0,
            peak_exact=False,
            by_category=(),
            frameworks=(),
            shared=True,
        ),
    ),
    host=None,
)
WITHOUT_A_CARD = m.Sample(
    t_ms=T0 + 500.0,
    cell=CELL,
    phase="backward",
    step=1,
    cards=(),
    host=m.HostSample(
        total=16 * GIB,
        process=3 * GIB,
        peak=4 * GIB,
        peak_exact=False,
        free=10 * GIB,
        by_category=(
            ("weights", "weights", GIB),
            ("rest", "activations, Python etc.", 2 * GIB),
        ),
        parts=(
            ("files", "of it files", GIB // 4),
            ("cache", "of it page cache", 5 * GIB),
        ),
    ),
)
ENDED = m.CellEnded(
    t_ms=T0 + 2000,
    cell=CELL,
    delta=CellDelta(
        label=CELL.label,
        execution_count=3,
        allocated_before=GIB,
        allocated_after=2 * GIB,
        reserved_before=2 * GIB,
        reserved_after=4 * GIB,
        peak=CellPeak(device=0, allocated=3 * GIB + 512, exact=True),
        process=None,
        duration_ns=2_000_000_000,
        error="OutOfMemoryError",
    ),
)
CARD = m.CardInfo(index=0, name="NVIDIA H100 80GB HBM3", total=H100, virtual=True)
REPORT = m.LastReport(
    t_ms=T0 + 2001,
    cell=CELL,
    title="train",
    verdict="Peak 4.00 GiB of 79.65 GiB: fits an NVIDIA H100 80GB HBM3 with 94% to spare.",
    device=CARD,
    duration_ms=2000.25,
    peak=Peak(
        at=Moment(event=17, t_ns=1_500_000, phase="backward", step=1, line=None),
        allocated=3 * GIB + 512,
        reserved=4 * GIB,
        active=3 * GIB + 512,
        requested=3 * GIB,
        process=None,
    ),
    at_peak=(("weights", "weights", 3 * GIB), ("free", "free", H100 - 3 * GIB)),
    at_end=(("weights", "weights", 2 * GIB), ("free", "free", H100 - 2 * GIB)),
    parts_at_peak=(),
    phases=(
        m.Phase(
            name="forward", step=0, depth=0, duration_ms=12.5, before=GIB, peak=3 * GIB, after=GIB
        ),
    ),
    phases_left_out=2,
    findings=(
        Finding(
            rule="cache_held",
            title="Give back 1.00 GiB of cached memory",
            evidence="1.00 GiB lay unused when the cell ended.",
            low=GIB,
            high=GIB,
            ground="exact",
            code="torch.cuda.empty_cache()",
            command=Command(name="free", arguments=("cache",)),
        ),
    ),
    tries=("cache_held",),
    notes=("The names are <script>alert(1)</script>.",),
    error=None,
)
PROCESS = m.Process(card=0, pid=4711, name="python (4711)", notebook="other.ipynb", used=GIB)
RANKS = m.RanksNow(
    t_ms=T0 + 2002,
    folder="runs/today",
    size=4,
    ranks=(
        RankNow(
            number=0,
            host="node1",
            state="running",
            phase="backward",
            step=12,
            card="NVIDIA H100 80GB HBM3",
            total=H100,
            allocated=3 * GIB,
            reserved=4 * GIB,
            peak=3 * GIB + 512,
            by_category=(("weights", "weights", GIB), ("rest", "activations etc.", 2 * GIB)),
            at="in all_reduce, called at train.py:41",
            error=None,
        ),
        RankNow(
            number=3,
            host="node1",
            state="failed",
            phase=None,
            step=None,
            card=None,
            total=None,
            allocated=None,
            reserved=None,
            peak=None,
            by_category=(),
            at=None,
            error="OutOfMemoryError: <b>out of memory</b>",
        ),
    ),
    left_out=2,
)

PUSHES = (
    SAMPLE,
    m.CellBegun(t_ms=T0, cell=CELL),
    ENDED,
    REPORT,
    m.Processes(t_ms=T0 + 2002, processes=(PROCESS,)),
    RANKS,
    m.Note(t_ms=T0 + 2003, sentence="The live readings stopped."),
    m.Loaded(t_ms=T0, package="0.1.0"),
    m.Unloaded(t_ms=T0 + 2004),
)
REQUESTS = (
    r.GetState(id="1"),
    r.ChooseCard(id="2", card="H100 80GB"),
    r.RunCommand(id="3", name="free", arguments=("cache",)),
    r.MuteRule(id="4", rule="cache_held", muted=True),
    r.SetRate(id="5", hz=8.0),
    r.TraceNext(id="6", on=True),
    r.ExpectQuestion(id="7"),
)
REPLIES = (
    r.State(
        id="1",
        t_ms=T0 + 3000,
        package="0.1.0",
        torch="2.13.0",
        cards=(CARD,),
        choices=(r.CardChoice(key="H100 80GB", name="NVIDIA H100 80GB HBM3", total=H100),),
        rate_hz=4.0,
        tracing_next=False,
        cell=None,
        samples=(SAMPLE, WITHOUT_A_CARD),
        cells=(ENDED,),
        report=REPORT,
        processes=(PROCESS,),
        ranks=RANKS,
        muted=("fragmentation",),
        notes=(),
    ),
    r.Done(id="3", sentence="1.00 GiB went back to the driver."),
    r.Refused(id="", sentence="This message is not nbmem's."),
)


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for message in (*PUSHES, *REQUESTS, *REPLIES):
        text = json.dumps(encode(message), indent=1, allow_nan=False)
        (GOLDEN / f"{kind_of(type(message))}.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
