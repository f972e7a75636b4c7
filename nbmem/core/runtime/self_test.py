"""Test the bytecode readers on small programs when they are imported.

A reader with a wrong result is disabled alone: from then on it returns its cautious result, and
`losses` describes what is lost. The programs are compiled and run by the Python that runs nbmem.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, ClassVar, Literal, TypeVar

Answer = TypeVar("Answer")
Use = Literal["recording", "virtual card"]

_HEADS = ("def run(probe, x):", "if 1:")
"""Headers of a program, which is tested both as a function's code and as a module's."""
_losses: dict[str, tuple[Use, str]] = {}


def losses(use: Use) -> list[str]:
    """List a sentence for each bytecode reader of some use that is off."""
    return [sentence for of, sentence in _losses.values() if of == use]


def self_tested(
    use: Use, loses: str, otherwise: Any, examples: Mapping[str, Any]
) -> Callable[[Callable[[CodeType, int], Answer]], Callable[[CodeType, int], Answer]]:
    """Decorate a reader: replace it unless it is right about each example.

    Args:
        use: What the reading is for.
        loses: What nbmem cannot do without the reader, as it follows "Cannot".
        otherwise: The cautious result.
        examples: The expected results for small programs. The tested instruction is the first use
            of the name `probe`, or else the failing one.
    """

    def try_out(read: Callable[[CodeType, int], Answer]) -> Callable[[CodeType, int], Answer]:
        try:
            wrong = next(
                (
                    f"it takes {source!r} for something else"
                    for source, expected in examples.items()
                    for head in _HEADS
                    if read(*_place(head, source)) != expected
                ),
                None,
            )
        except Exception as err:  # noqa: BLE001 - any effect of unknown instructions
            wrong = f"{type(err).__name__}: {err}"
        if wrong is None:
            return read
        python = "{}.{}".format(*sys.version_info)
        sentence = (
            f"Cannot {loses}: nbmem does not know the bytecode of this Python {python} ({wrong}). "
            "Use a Python that nbmem was tested on, or a newer nbmem; everything else works."
        )
        _losses[read.__name__] = use, sentence
        return lambda _code, _place: otherwise

    return try_out


class _Probe:
    """A recorder of each place where a program uses the name `probe`."""

    places: ClassVar[list[tuple[CodeType, int]]] = []

    def __bool__(self) -> bool:
        frame = sys._getframe(1)  # noqa: SLF001 - the documented way to the reading frame
        self.places.append((frame.f_code, frame.f_lasti))
        return True

    data = property(__bool__)

    def __gt__(self, _other: object) -> _Probe:
        return self

    __lt__ = __gt__


def _place(head: str, source: str) -> tuple[CodeType, int]:
    """Run a small program and return the place that its test reads.

    It is where the program first used `probe`, or else where it failed.
    """
    _Probe.places.clear()
    names: dict[str, Any] = {"probe": _Probe(), "x": None}
    program = f"{head}\n{textwrap.indent(source, ' ')}"
    try:
        exec(compile(program, "<nbmem>", "exec", dont_inherit=True, optimize=0), names)  # noqa: S102
        if "run" in names:
            names["run"](_Probe(), None)
    except Exception as err:  # noqa: BLE001 - code after the use of `probe` may fail
        way: Any = err.__traceback__
        while way.tb_next is not None:
            way = way.tb_next
        _Probe.places.append((way.tb_frame.f_code, way.tb_lasti))
    return _Probe.places[0]
