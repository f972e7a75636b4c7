"""Run a program once on a virtual card and measure its memory.

The first run is on a card without a memory limit. A second run is made on the real size only where
the first exceeds it, since torch may release cached segments.
A program that does not finish there gets a sentence with the reason.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.runtime.clock import CLOCK
from nbmem.core.session.categories import ACTIVE
from nbmem.estimates.programs import variable_binding
from nbmem.estimates.programs.programs import CALL, EndedError, Program
from nbmem.estimates.programs.serialization import NotCopiedError
from nbmem.estimates.programs.source_edits import Edit
from nbmem.estimates.remedies import is_slow, oversubscribes
from nbmem.estimates.runs import run_card
from nbmem.estimates.world_choice import NO_GROUP, communicated_bytes
from nbmem.report.estimate_results import Failure, Probe
from nbmem.views.markup import clipped

if TYPE_CHECKING:
    from nbmem.allocator.recordings.request_sequence import RequestSequence
    from nbmem.api.tracing import Trace
    from nbmem.core.session.session import Session
    from nbmem.estimates.remedies.base import Remedy
    from nbmem.report.model import Report
    from nbmem.virtual.cards import Card

LONGEST = 160
"""Characters of an error's text that an answer shows."""


@contextlib.contextmanager
def collect_thread_failures(program: Program) -> Iterator[list[Failure]]:
    """Collect out-of-memory errors that threads raised.

    torch raises in the thread, and reports only text. The hook of `threading` is wrapped.
    """
    found: list[Failure] = []
    true = threading.excepthook

    def record(args: threading.ExceptHookArgs) -> None:
        failure = None if args.exc_value is None else failure_of(program, args.exc_value)
        if failure is not None and failure.kind == "memory":
            found.append(failure)
        true(args)

    threading.excepthook = record
    try:
        yield found
    finally:
        threading.excepthook = true


def failure_of(program: Program, error: BaseException) -> Failure:
    """Convert an exception to the failure that an answer shows."""
    import torch

    if isinstance(error, (EndedError, NotCopiedError)):
        return Failure(kind="other", text=str(error), line=program.line_of(error))
    first = next(iter(str(error).splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    memory = isinstance(error, torch.cuda.OutOfMemoryError)
    if memory:
        text = text.partition(". GPU")[0]
    line, shown = program.line_of(error), clipped(text.rstrip("."), LONGEST)
    return Failure(kind="memory" if memory else "other", text=shown, line=line)


ENDLESS = 1 << 50
"""Bytes of the card for runs without a memory limit: a pebibyte."""
NO_TENSOR = "it puts no tensor on a card"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parameters of one run.

    Attributes:
        card: On which card.
        margin: Bytes of it to keep free.
        value: The value of the program's variable.
        remedies: Keys of remedies to run it under.
        rank: The rank in the program's world, if it has one.
        compiled: Plan what the program compiles, which takes long; else that runs eagerly.
    """

    card: Card
    margin: int = 0
    value: int | None = None
    remedies: tuple[str, ...] = ()
    rank: int = 0
    compiled: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a request.

    Attributes:
        probe: The run.
        refused: Why a remedy did nothing, or None.
        called: A description of the remedies, with this run's figures.
        fullest: The rank that needs most memory under the remedies.
        price: What the remedies cost, with this run's figures.
        code: The lines that apply them to this program.
        changed: The program's source with these lines; None if their position is unknown.
        phases: The name of each phase, and active bytes by category at its peak. A remedy's saving
            is predicted from these.
        idle: Remedies that this machine lacks, or that would change nothing in the program, by key,
            with the reason.
        requests: The requests on each card without a limit; empty where they were not recorded.
    """

    probe: Probe
    refused: str | None = None
    called: str = ""
    fullest: int = 0
    price: str = ""
    code: str = ""
    changed: str | None = None
    phases: tuple[tuple[str, Mapping[str, int]], ...] = ()
    idle: Mapping[str, str] = dataclasses.field(default_factory=dict)
    requests: tuple[RequestSequence, ...] = ()


@dataclasses.dataclass(slots=True)
class _TracedRun:
    trace: Trace
    failure: Failure | None
    refused: str | None
    called: str
    fullest: int
    price: str
    code: str
    context: int
    idle: dict[str, str]
    changed: str | None
    notes: tuple[str, ...]
    sent: Mapping[str, int]
    requests: tuple[RequestSequence, ...]

    def without_trace(self) -> _TracedRun:
        """Return a copy that can be pickled; the session goes beside it."""
        copied = copy.copy(self)
        del copied.trace
        return copied


def probe(program: Program, request: Request) -> Reply:
    """Run a program without a memory limit, then on the card if needed.

    Below the card's size, the size changes nothing, so a run that stays below it fits. Above it, a
    second run is made: torch may still release cached segments.
    """
    begun = CLOCK.perf_counter()
    card = request.card
    endless = dataclasses.replace(card, total_bytes=ENDLESS, nvml_total=ENDLESS)
    room = card.total_bytes - request.margin
    ran = _run(program, dataclasses.replace(request, card=endless, margin=0), room=room)
    report = _report(ran)
    found = _read(ran, report, request)
    if found.failure is None and oversubscribes(request.remedies):
        # What is not on the card is in the host's memory: the process fills the card at most.
        found = dataclasses.replace(found, fits=True, process=min(found.process, room))
    elif found.failure is None and found.wanted > room:
        again = _run(program, request, look=False)
        pressed = _read(again, _report(again), request)
        figures = pressed if pressed.fits else found
        found = dataclasses.replace(
            found,
            # A library's memory for its handle is not requested from the card, which may be full.
            fits=pressed.fits and pressed.process <= room,
            failure=pressed.failure,
            reserved=figures.reserved,
            process=figures.process,
        )
    found = dataclasses.replace(found, seconds=CLOCK.perf_counter() - begun)
    return Reply(
        probe=found,
        refused=ran.refused,
        called=ran.called,
        fullest=ran.fullest,
        price=ran.price,
        code=ran.code,
        changed=ran.changed,
        phases=_phases(report) if found.ran and report is not None else (),
        idle=ran.idle,
        requests=ran.requests if found.ran and not oversubscribes(request.remedies) else (),
    )


def refuse(found: Probe, how: str) -> None:
    """Raise if a program failed for another reason than memory.

    Raises:
        UsageError: With the reason.
    """
    if found.ran:
        return
    assert found.failure is not None  # noqa: S101 - else it ran
    if found.failure.text == NO_TENSOR:
        raise UsageError(
            "The program puts no tensor on a card, so there is nothing to estimate. Move its model "
            'and its batch there: `.cuda()`, or device="cuda".'
        )
    raise UsageError(f"The program fails {how}, and not for want of memory: {found.failure}.")


def record(program: Program, request: Request) -> Session:
    """Run a program once on the card as it is, and return the recording."""
    return record_requests(program, request)[0]


def record_requests(
    program: Program, request: Request, *, look: bool = True
) -> tuple[Session, tuple[RequestSequence, ...]]:
    """Run a program once; return the recording and each card's requests.

    Args:
        program: What to run.
        request: On which card.
        look: Whether to find the holders of tensors at the end, too.
    """
    ran = _run(program, request, look=look)
    session = ran.trace.session
    assert session is not None  # noqa: S101 - no trace runs around ours
    return session, ran.requests


def _run(program: Program, request: Request, *, look: bool = True, room: int = 0) -> _TracedRun:
    """Run a program once, traced, where it finds the card of the request.

    Arguments as for `_run_here`.
    """
    from nbmem.api import tracing

    def work() -> tuple[_TracedRun, Session | None]:
        ran = _run_here(program, request, look=look, room=room)
        return ran.without_trace(), ran.trace.session

    if not run_card.is_forked():
        return _run_here(program, request, look=look, room=room)
    ran, session = run_card.run_forked(work)
    ran.trace = tracing.trace(program.title)
    assert session is not None  # noqa: S101 - no trace runs around ours
    ran.trace.session = session
    return ran


def _run_here(program: Program, request: Request, *, look: bool, room: int) -> _TracedRun:
    """Run a program once, traced, on the card of the request.

    Args:
        program: What to run.
        request: On which card, under which remedies.
        look: Whether to find the holders of the peak's tensors, too.
        room: Bytes of the real card that the process may have.
    """
    from nbmem.api import tracing
    from nbmem.estimates.remedies import applied, conf_of, find_idle
    from nbmem.virtual.patches.distributed.spawn import RankState, playing

    gc.collect()  # what the previous run left in cycles is on a deactivated card
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        conf = conf_of(request.remedies)
        cards = (request.card,) * (1 if program.world is None else program.world.local)
        eager = not (request.compiled or is_slow(request.remedies))
        card = stack.enter_context(
            run_card.in_use(run_card.RunOptions(cards, request.margin, conf, eager))
        )
        module = program.prepare()
        stack.enter_context(playing(program.world, request.rank))
        edit = Edit.of(program.source)
        watch = stack.enter_context(applied(request.remedies, edit.own, room))
        trace = tracing.trace(program.title, namespace=vars(module))
        failure, error = None, None
        threads = stack.enter_context(collect_thread_failures(program))
        trace.start()
        try:
            watch.begin()
            program.run(module, request.value)
        except KeyboardInterrupt:
            raise
        except BaseException as err:  # noqa: BLE001 - whatever the user's program raises
            failure, error = failure_of(program, err), err.with_traceback(None)
        finally:
            if look:
                trace.stop(error)
            else:
                trace.end(error, lambda _seconds: True)
        steps = max(watch.backwards, 1)
        refused = _refused(watch.remedies, failure)
        called = " + ".join(r.called for r in watch.remedies)
        fullest = max((r.fullest for r in watch.remedies), default=0)
        price = "; ".join(r.price_of(request.card, steps) for r in watch.remedies)
        code = "\n".join(r.code_of(request.card) for r in watch.remedies)
        changed = _changed(edit, program, watch.remedies, request)
        context, requests = card.context(), card.requests()
        notes = () if program.world is None or RankState.apart else (NO_GROUP,)
        idle = {} if request.remedies else find_idle(vars(module))
    failure = failure or next(iter(threads), None)
    sent = communicated_bytes(program, trace)
    return _TracedRun(
        trace, failure, refused, called, fullest, price, code, context, idle, changed, notes, sent,
        requests,
    )  # fmt: skip


def _refused(remedies: Sequence[Remedy], failure: Failure | None) -> str | None:
    """Return why a remedy did nothing, or None.

    In a program that failed, a remedy that was not reached is not reported.
    """
    failed = failure is not None and failure.kind == "other"
    return next(filter(None, (r.why_not if failed else r.unapplied for r in remedies)), None)


def _changed(
    edit: Edit, program: Program, remedies: Sequence[Remedy], request: Request
) -> str | None:
    """Return the source with one remedy in it; None if no place is known."""
    if len(remedies) != 1 or program.file == CALL:
        return None
    (remedy,) = remedies
    bound = program.binding
    if remedy.parts > 1 and (bound is None or bound.line is None or request.value is None):
        return None
    if not remedy.put(edit, request.card):
        return None
    result = edit.result()
    if remedy.parts > 1 and bound is not None and request.value is not None:
        return variable_binding.rewrite_source(result, bound, request.value)
    return result


def _phases(report: Report) -> tuple[tuple[str, dict[str, int]], ...]:
    """Return the categories at each phase's peak and at the overall peak."""
    rows = [(row.name, row.ledger_at_peak) for row in report.phases if not row.depth]
    rows.append((report.peak.at.phase or "", report.ledger_at_peak))
    return tuple((name, {c.label: ledger[c] for c in ACTIVE}) for name, ledger in rows)


def _report(ran: _TracedRun) -> Report | None:
    """Return a run's report; None if it puts no tensor on a card."""
    try:
        return ran.trace.report_figures()
    except NbmemError:
        return None


def _read(ran: _TracedRun, report: Report | None, request: Request) -> Probe:
    if report is None:
        failure = ran.failure or Failure(kind="other", text=NO_TENSOR)
        return Probe(
            value=request.value, fits=False, allocated=0, reserved=0, process=0, wanted=0,
            phase=None, failure=failure,
        )  # fmt: skip
    peak, ledger = report.peak, report.ledger_at_peak
    # The libraries' handles only grow, so this is the highest possible figure.
    process = peak.reserved + ran.context
    held = {category.label: ledger[category] for category in ACTIVE}
    return Probe(
        value=request.value,
        fits=ran.failure is None,
        allocated=peak.allocated,
        reserved=peak.reserved,
        process=process,
        wanted=process,
        phase=peak.at.phase,
        held={name: count for name, count in held.items() if count},
        failure=ran.failure,
        notes=(*ran.notes, *report.notes),
        sent=ran.sent,
    )
