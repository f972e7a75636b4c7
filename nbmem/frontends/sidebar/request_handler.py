"""Handle requests of the sidebar; every fault becomes an answer.

Only the requests of requests.py are accepted.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from nbmem.core.errors import NbmemError, UsageError
from nbmem.core.runtime.clock import now_ms
from nbmem.core.version import __version__
from nbmem.frontends.sidebar.message_codec import decode_request, encode
from nbmem.frontends.sidebar.messages import LEAST_HZ, MOST_HZ, CardInfo
from nbmem.frontends.sidebar.requests import (
    MOST_TEXT,
    CardChoice,
    ChooseCard,
    Done,
    ExpectQuestion,
    GetState,
    MuteRule,
    Refused,
    RunCommand,
    SetRate,
    State,
    TraceNext,
)

if TYPE_CHECKING:
    from nbmem.frontends.sidebar.hub import Hub
    from nbmem.frontends.sidebar.requests import Order, Reply, Request
    from nbmem.report.model import Command

logger = logging.getLogger("nbmem")

FREE_CACHE = ("free", ("cache",))
"""The one command that a page may request without a finding that names it."""


class Actions(Protocol):
    """Actions of the notebook that a page may request.

    Each returns a sentence, or raises NbmemError with one.
    """

    tracing_next: bool

    def choose_card(self, card: str) -> str:
        """Activate a virtual card; `off` deactivates it."""

    def expect_question(self) -> None:
        """Prepare for `%%nbmem fit` and its like."""

    def free(self, command: Command) -> tuple[str, int]:
        """Free what a command names; return a sentence and the bytes freed."""

    def mute(self, rule: str, *, muted: bool) -> str:
        """Mute or unmute the findings of a rule."""

    def muted(self) -> tuple[str, ...]:
        """Return the rules that are muted."""


class RequestHandler:
    """A handler that decodes a request and encodes its answer.

    Args:
        hub: The hub whose state it returns.
        actions: The actions that it may run.
        between_cells: Calls a function in the cells' thread, between two cells; raises NbmemError
            if that takes too long.
    """

    def __init__(
        self, hub: Hub, actions: Actions, between_cells: Callable[[Callable[[], str]], str]
    ) -> None:
        self._hub = hub
        self._actions = actions
        self._between_cells = between_cells

    def to(self, data: Any) -> dict[str, Any]:
        """Answer any data that a page sent."""
        name = data.get("id") if isinstance(data, dict) else None
        name = name[:MOST_TEXT] if isinstance(name, str) else ""
        try:
            return encode(self._answer(decode_request(data)))
        except NbmemError as err:
            return encode(Refused(id=name, sentence=str(err)))
        except Exception as err:
            logger.debug("could not answer", exc_info=True)
            return encode(
                Refused(
                    id=name,
                    sentence=f"nbmem could not do it ({type(err).__name__}: {err}). It is a fault "
                    "of nbmem's: please report it with this line.",
                )
            )

    def _answer(self, request: Request) -> Reply:
        if isinstance(request, GetState):
            return self.state(request.id)
        return Done(id=request.id, sentence=self._carry_out(request))

    def _carry_out(self, request: Order) -> str:
        """Carry out a request; return a sentence on what was done."""
        match request:
            case SetRate():
                return self._set_rate(request.hz)
            case TraceNext():
                self._actions.tracing_next = request.on
                return "The next cell is traced." if request.on else "It is not traced."
            case ExpectQuestion():
                self._actions.expect_question()
                return ""
            case MuteRule():
                return self._actions.mute(request.rule, muted=request.muted)
            case ChooseCard():
                return self._do(lambda: self._actions.choose_card(request.card))
            case RunCommand():
                return self._run(_command(request))

    def state(self, name: str) -> State:
        """Return the full state for a page that has just connected."""
        from nbmem.api import device_selection

        memory = self._hub.state()
        torch = sys.modules.get("torch")
        return State(
            id=name,
            t_ms=now_ms(),
            package=__version__,
            torch=None if torch is None else str(getattr(torch, "__version__", "")) or None,
            cards=tuple(
                CardInfo(
                    index=card.ordinal,
                    name=card.name,
                    total=card.total,
                    virtual=card.virtual,
                    shared=card.shared,
                )
                for card in device_selection.cards_here()
            ),
            choices=tuple(
                CardChoice(key=card.key, name=card.name, total=card.nvml_total)
                for card in device_selection.choices()
            ),
            rate_hz=self._hub.hz,
            tracing_next=self._actions.tracing_next,
            muted=self._actions.muted(),
            **memory._asdict(),
        )

    def _set_rate(self, hz: float) -> str:
        if not LEAST_HZ <= hz <= MOST_HZ:
            raise UsageError(
                f"{hz:g} readings a second are not possible: choose {LEAST_HZ} to {MOST_HZ}."
            )
        self._hub.hz = hz
        return f"{hz:g} readings a second from now on."

    def _run(self, command: Command) -> str:
        report = self._hub.state().report
        offered = [finding.command for finding in report.findings] if report else []
        free_cache = (command.name, command.arguments) == FREE_CACHE
        if not free_cache and command not in offered:
            raise UsageError(
                f"`{' '.join((command.name, *command.arguments))}` is not what a finding of the "
                "last report offers, so it is not done from here. Type it as %nbmem in a cell."
            )

        def free() -> str:
            sentence, size = self._actions.free(command)
            self._hub.set_measured(command, size)
            return sentence

        return self._do(free)

    def _do(self, action: Callable[[], str]) -> str:
        """Run an action on the card or the namespace between two cells."""

        def do() -> str:
            if self._hub.state().cell is not None:
                raise UsageError("A cell is running. Ask again when it has ended.")
            try:
                return action()
            finally:
                self._hub.sample_once()

        return do() if self._hub.state().cell is not None else self._between_cells(do)


def _command(request: RunCommand) -> Command:
    """Return the command of a request; %load_ext waits for no report's types."""
    from nbmem.report.model import Command

    return Command(name=request.name, arguments=request.arguments)
