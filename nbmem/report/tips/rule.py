"""A rule: its text, its check, and when it applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nbmem.core.units import format_bytes, format_range
from nbmem.report import savings
from nbmem.report.model import Command, Finding

if TYPE_CHECKING:
    from nbmem.report.tips.evidence import Evidence

Findings = Iterator[Finding]
HEADINGS = ("What it sees", "What it costs", "Do instead", "When to ignore it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule that recognizes one memory problem.

    Attributes:
        name: Its key: `%nbmem explain NAME`, `%nbmem mute NAME`, and the name of its file.
        text: Its page: a title, then the four HEADINGS. The docstring of its file.
        check: Checks a recording and returns findings; returns none if it is not sure.
        when: `always`; `short`: only where memory is short, as a card with room does not justify
            the remedy's price; `asked`: only if all tips are requested. That includes those of
            `short`.
        last_resort: Its tips come after all others, whatever they save.
        anywhere: It reads what is live at the end and its holders, which are known for any memory.
            Other rules need an allocator's history, which exists for NVIDIA's and AMD's cards.
        of_growth: It is about memory that grows from step to step.
        of_garbage: It is about garbage, which a function may leave.
        of_loading: It is about a checkpoint that was loaded.
        of_cache: It saves reserved bytes that are not allocated. What the cache holds follows from
            what is allocated, so a tip that saves much of that comes first.
        has_price: Its remedy takes time or changes what is computed. Where others save much, their
            tips come first.
        general: It sees that memory is wasted, and other rules know better why. Its tips are left
            out where another one saves nearly as much.
    """

    name: str
    text: str
    check: Callable[[Evidence], Iterable[Finding]]
    when: Literal["always", "short", "asked"] = "always"
    last_resort: bool = False
    anywhere: bool = False
    of_growth: bool = False
    of_garbage: bool = False
    of_loading: bool = False
    of_cache: bool = False
    has_price: bool = False
    general: bool = False

    @property
    def title(self) -> str:
        """The first line of its page."""
        return self.text.strip().splitlines()[0].rstrip(".")

    def finding(
        self,
        *,
        title: str,
        evidence: str,
        saves: savings.Saving,
        code: str | None = None,
        command: Command | None = None,
    ) -> Finding:
        """Return a finding of this rule."""
        return Finding(
            rule=self.name, title=title, evidence=evidence, **saves, code=code, command=command
        )


fmt, fmt_range = format_bytes, format_range
exact, simulated, estimated = savings.exact, savings.simulated, savings.estimated
