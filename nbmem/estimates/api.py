"""Estimate memory on a virtual card: need, largest fit and remedies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbmem.core.errors import UsageError
from nbmem.engine import AUTO
from nbmem.engine.choice import NO_TABLE, choose
from nbmem.estimates import world_choice as ranked
from nbmem.estimates.answers import (
    Answer,
    CardsAnswer,
    FitAnswer,
    LayersAnswer,
    PlanAnswer,
    WorldsAnswer,
    named,
    to_displayed,
)
from nbmem.estimates.card_choice import card_for, is_all
from nbmem.estimates.programs import programs
from nbmem.estimates.questions import fit as fitting
from nbmem.estimates.questions import layers as by_layer
from nbmem.estimates.questions import plan as planning
from nbmem.estimates.questions import single_remedy, world_sizes
from nbmem.estimates.runs.probe_run import Reply, Request, probe, record
from nbmem.estimates.runs.subprocess_client import EstimateProcess
from nbmem.report.estimate_results import MARGIN

if TYPE_CHECKING:
    from nbmem.api.tracing import Trace
    from nbmem.estimates.programs.programs import Program
    from nbmem.report.exploration import StepGrowth
    from nbmem.report.model import Finding
    from nbmem.virtual.cards import Card


def silent(_text: str) -> None:
    """Ignore the line about a run."""


def estimate(
    function: Callable[[], Any],
    gpu: str | Card | None = None,
    *,
    ranks: int | None = None,
    engine: str = AUTO,
) -> Trace:
    """Run a function on a virtual card and return the recording.

    The run happens in a process of its own.

    Args:
        function: Called with nothing. It and what it uses are copied: nothing here changes. What
            it does outside of this process (files, network) it does.
        gpu: Name of a card; None for the one in use, else a virtual H100.
        ranks: Run it as rank 0 of so many, which has the largest shards, as torchrun would: it
            makes its own process group. None for a program of one process.
        engine: What makes the figures: `rules`, `torch` (torch's own CUDA build without a card), or
            `auto`: torch where it was used before.

    Raises:
        NbmemError: The function cannot be copied, or there is no such card or engine.
    """
    from nbmem.api import tracing

    card, world = ranked.world_for(gpu, ranks)
    program = ranked.of_world(programs.call(function), world)
    trace = tracing.trace(program.title)
    with EstimateProcess(program, ranked.engine_of(engine, world), card) as apart:
        trace.session = apart.call(record, Request(card=card, compiled=True))
    return trace


def fit(  # noqa: PLR0913 - the question's parts
    program: Callable[[int], Any] | Program,
    gpu: str | Card | None = None,
    *,
    ranks: int | None = None,
    start: int = 1,
    between: tuple[int, int] | None = None,
    step: int = 1,
    margin: float = MARGIN,
    remedies: tuple[str, ...] = (),
    engine: str = AUTO,
    tell: Callable[[str], None] = silent,
    show: Callable[[FitAnswer, str], None] | None = None,
) -> FitAnswer:
    """Find the largest value of an argument or variable that fits.

    Args:
        program: A function that is called with the value (`lambda batch: train(batch)`), or what
            `nbmem.estimates.programs.programs` makes.
        gpu: Name of a card; None for the one in use, else a virtual H100.
        ranks: Run it as rank 0 of so many, which has the largest shards, as torchrun would: it
            makes its own process group. None for a program of one process.
        start: A value of a function that runs; the search begins there.
        between: Smallest and largest value; None for 1 and no bound.
        step: Distance of the values that are searched.
        margin: Part of the card to keep free.
        remedies: Keys of remedies (`nbmem.estimates.remedies`) under which it runs.
        engine: What makes the figures, as for `estimate`.
        tell: Called with a line of text after every run.
        show: Called after each run with the answer so far, and with the work that is left.

    Raises:
        NbmemError: The program cannot be copied or does not run, or there is no such card.
    """
    card, world = ranked.world_for(gpu, ranks)
    engine = ranked.engine_of(engine, world, many=True)
    variable = None
    if not isinstance(program, programs.Program):
        first = between[0] if between else start
        variable = _parameter(program)
        program = programs.call(program, start=max(start, first))
    program = ranked.of_world(program, world)
    with EstimateProcess(program, engine, card) as apart:
        answer = fitting.fit(
            program,
            fitting.cached_query(apart.call),
            card,
            margin=margin,
            between=between,
            step=step,
            variable=variable,
            remedies=remedies,
            tell=tell,
            show=_partial(FitAnswer, show),
        )
    return to_displayed(FitAnswer, named(answer, engine))


def _partial(
    kind: type[Answer], show: Callable[[Answer, str], None] | None
) -> Callable[[Any, str], None]:
    """Return a callback that wraps partial answers before showing them."""
    return lambda answer, left: None if show is None else show(to_displayed(kind, answer), left)


def _parameter(function: Callable[..., Any]) -> str:
    """Return the name of a function's first parameter, or "value"."""
    import inspect

    try:
        return next(iter(inspect.signature(function).parameters), "value")
    except (TypeError, ValueError):
        return "value"


def plan(  # noqa: PLR0913 - the question's parts
    program: Callable[..., Any] | Program,
    gpu: str | Card | None = None,
    *,
    ranks: int | None = None,
    batch: int | None = None,
    target: int | None = None,
    margin: float = MARGIN,
    every: bool = False,
    engine: str = AUTO,
    tell: Callable[[str], None] = silent,
    show: Callable[[PlanAnswer, str], None] | None = None,
) -> PlanAnswer | WorldsAnswer | CardsAnswer:
    """Run a program under remedies that may make it fit on the card.

    Each remedy that can change the answer is run on the virtual card. The cheapest that suffices is
    certain: a remedy that was not run costs more or cannot suffice. With `ranks`, a program that
    makes no process group is run under each parallelism.

    Args:
        program: A function (called with the batch size if one is given, else with nothing), or
            what `nbmem.estimates.programs` makes.
        gpu: Name of a card; None for the one in use, else a virtual H100; `all` as for `cards`.
        ranks: Run it as rank 0 of so many, as for `fit`.
        batch: The batch size of a function; None if it takes none.
        target: Bytes of the process that are wanted; None for the card less the margin.
        margin: Part of the card to keep free.
        every: Run it under every remedy, and under pairs of the best, whatever they can change.
        engine: What makes the figures, as for `estimate`.
        tell: Called with a line of text after every run.
        show: Called after each run with the answer so far, and with the work that is left.

    Raises:
        NbmemError: The program cannot be copied or does not run, or there is no such card.
    """
    if is_all(gpu):
        choose(engine, NO_TABLE)
        return cards(program, margin=margin, options=(ranks, batch, target, every), tell=tell)
    card, world = ranked.world_for(gpu, ranks)
    engine = ranked.engine_of(engine, world, many=True)
    alone, variable = _called_with(program, batch)
    program = ranked.of_world(alone, world)
    with EstimateProcess(program, engine, card) as apart:
        ask = fitting.cached_query(apart.call)
        if world is not None and batch is None and target is None and not every:
            first = ask(planning.baseline_request(program, card, margin)).probe
            if ranked.NO_GROUP in first.notes:
                return worlds(alone, gpu, (world.world,), margin=margin, tell=tell)
        answer = planning.plan(
            program,
            ask,
            card,
            margin=margin,
            target=target,
            variable=variable,
            every=every,
            tell=tell,
            show=_partial(PlanAnswer, show),
        )
    return to_displayed(PlanAnswer, named(answer, engine))


def _called_with(
    program: Callable[..., Any] | Program, batch: int | None
) -> tuple[Program, str | None]:
    """Return a function as a program, and the name of its batch size."""
    if isinstance(program, programs.Program):
        return program, None
    variable = None if batch is None else _parameter(program)
    return programs.call(program, start=batch), variable


def cards(
    program: Callable[[], Any] | Program,
    *,
    margin: float = MARGIN,
    options: tuple[Any, ...] = (),
    tell: Callable[[str], None] = silent,
) -> CardsAnswer:
    """Find the cards of the table on which a program would run as it is.

    Args:
        program: A function that is called with nothing, or what `nbmem.estimates.programs` makes.
        margin: Part of a card to keep free.
        options: Options of `plan`, none of which may be given.
        tell: Called with a line of text after every run.

    Raises:
        NbmemError: The program cannot be copied or does not run, or an option was given.
    """
    from nbmem.estimates.questions import card_table  # imports numpy

    if any(options):
        raise UsageError(
            "With --gpu all a program runs as it is: leave out --ranks, --batch, --target and "
            "--all. Name one card for those."
        )
    if not isinstance(program, programs.Program):
        program = programs.call(program)
    with EstimateProcess(program) as apart:
        answer = card_table.ask(apart.call, program.title, margin, tell)
    return to_displayed(CardsAnswer, answer)


def try_finding(
    finding: Finding,
    growth: StepGrowth | None,
    program: Program,
    namespace: Mapping[str, Any],
    *,
    tell: Callable[[str], None] = silent,
) -> PlanAnswer:
    """Run a cell as it is and with the change of a tip, and compare the bytes.

    Args:
        finding: The tip.
        growth: What grows in the cell, if the tip is about that.
        program: The cell.
        namespace: The notebook's names; they stay as they are.
        tell: Called with a line of text after every run.

    Raises:
        NbmemError: The change cannot be made, or the cell cannot be copied or does not run.
    """
    card = card_for(None)

    def bind(name: str) -> Program:
        return programs.bind_variable(program, name, namespace)

    change = single_remedy.change_of(finding, growth, program, bind)

    def run(one: Program, request: Request) -> Reply:
        with EstimateProcess(one) as apart:
            reply: Reply = apart.call(probe, request)
            return reply

    kept = int(card.total_bytes * MARGIN)
    answer = single_remedy.try_change(finding, change, card, kept, run, tell)
    return to_displayed(PlanAnswer, answer)


def worlds(
    program: Callable[[], Any] | Program,
    gpu: str | Card | None = None,
    ranks: Sequence[int] = (8, 16, 32, 64),
    *,
    margin: float = MARGIN,
    tell: Callable[[str], None] = silent,
) -> WorldsAnswer:
    """Find the fewest ranks that train a program, and bytes per card.

    The program is run in worlds of several sizes. A program that makes no process group is run
    under DDP, ZeRO-1 to 3, HSDP and tensor parallelism. A program that makes one is run as it is,
    and with its own wrappers' switches.

    Args:
        program: A function that is called with nothing, or what `nbmem.estimates.programs` makes.
        gpu: Each rank's card, by name; None for the one in use, else a virtual H100.
        ranks: Ranks of each world.
        margin: Part of the card to keep free.
        tell: Called with a line of text after every run.

    Raises:
        NbmemError: The program cannot be copied or does not run, or there is no such card or world.
    """
    if not isinstance(program, programs.Program):
        program = programs.call(program)
    return to_displayed(
        WorldsAnswer, world_sizes.worlds(program, gpu, ranks, margin=margin, tell=tell)
    )


def layers(  # noqa: PLR0913 - the question's parts
    model: Any,
    shape: tuple[int, ...] | None = None,
    *,
    batch: Any = None,
    optimizer: Any = None,
    gpu: str | Card | None = None,
    title: str = "",
    engine: str = AUTO,
) -> LayersAnswer:
    """Measure a model layer by layer, in bytes and FLOPs.

    A row has weights, gradients, optimizer state, activations and FLOPs.

    Args:
        model: A torch.nn.Module; it is copied without its values and stays as it is.
        shape: Of an input to make up; None for none.
        batch: An input instead: a tensor, a tuple of them or a dict of them.
        optimizer: The model's; None for AdamW.
        gpu: Name of a card; None for the one in use, else a virtual H100.
        title: What the model is called; empty for its class.
        engine: What makes the figures, as for `estimate`.

    Raises:
        NbmemError: It cannot be copied, or does not run on the input.
    """
    kind = type(model).__name__
    title = f"{title}: {kind}" if title else kind
    program = programs.objects(
        {by_layer.MODEL: model, by_layer.INPUT: batch, by_layer.OPTIMIZER: optimizer}, title
    )
    card, engine = card_for(gpu), ranked.engine_of(engine)
    with EstimateProcess(program, engine, card) as apart:
        answer = apart.call(by_layer.measure, card, title, shape)
    return to_displayed(LayersAnswer, named(answer, engine))


def layers_of(
    program: Program,
    name: str,
    shape: tuple[int, ...] | None = None,
    *,
    gpu: str | Card | None = None,
    engine: str = AUTO,
) -> LayersAnswer:
    """Run a script and measure its model layer by layer, as `layers` does.

    Raises:
        NbmemError: The script does not run, or makes no such model.
    """
    card, engine = card_for(gpu), ranked.engine_of(engine)
    with EstimateProcess(program, engine, card) as apart:
        answer = apart.call(by_layer.measure_script, card, name, shape)
    return to_displayed(LayersAnswer, named(answer, engine))
