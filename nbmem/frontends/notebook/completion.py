"""Complete nbmem's lines on Tab, and say bytes on Tab and Shift-Tab.

IPython queries several matchers and joins their results, so Python's completions would be added to
nbmem's (`--` begins `--abs`). In every version its completer has two entry points. On nbmem's lines
these methods replace them. On other lines the completions are Python's. In a terminal the type of a
variable that is on a card (`instance`) has its bytes behind it. JupyterLab writes types in small
letters (`mib`) and lets a longer one cover the next line; its panel beside the list has the bytes
by an inspection.

A command's options are listed once, for its help and for Tab.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.warning_filter import pass_warnings
from nbmem.frontends.notebook.commands import COMMANDS, estimates
from nbmem.frontends.notebook.commands import completions as candidates
from nbmem.frontends.notebook.commands.base import CompletionRequest, Notebook
from nbmem.frontends.notebook.error_boundary import shell_entry
from nbmem.frontends.notebook.options import HELP, OPTIONS

if TYPE_CHECKING:
    from nbmem.core.arguments import CommandOption

_LINE = re.compile(r"\s*(%%?)(nbmem|memtrace)[ \t]+(.*)")
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*(?:"|$)|'[^']*(?:'|$))+""")
_CALLS = ("completions", "complete")
_INSPECT = "object_inspect_mime"
_DOTTED = re.compile(r"[^\W\d]\w*(\.\w+)*")
_LABEL = "GPU memory:"
_BEFORE_CURSOR = re.compile(r"[\w.]*$")
MAX_SIZED = 50
"""Completions of one Tab whose bytes are looked up, the first."""
SIZES_S = 0.05
"""Time for all of them, without what IPython takes."""
QUESTION = "%%nbmem"
"""Start of a line with a question about the cell below."""


class CompletionMatches(NamedTuple):
    """The completions possible at the cursor.

    Attributes:
        word: The part of the word before the cursor.
        words: Its possible completions.
        blanked: The text with nbmem's part of the line blank, if Python is to be completed there
            instead; else None.
    """

    word: str
    words: list[str]
    blanked: str | None = None


class Completion:
    """The completer of nbmem's lines in one shell."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._completer: Any = notebook.shell.Completer
        self._theirs: dict[str, Any] = {}
        self._sizes = getattr(notebook.shell, "kernel", None) is None

    def install(self) -> None:
        """Replace the completer's methods with this object's."""
        for name in _CALLS:
            self._theirs[name] = getattr(self._completer, name)
            setattr(self._completer, name, getattr(self, name))

    def remove(self) -> None:
        """Restore the completer's own methods."""
        for name in _CALLS:
            if vars(self._completer).get(name) == getattr(self, name):
                delattr(self._completer, name)

    def _their_completions(self, text: str, offset: int) -> Any:
        with pass_warnings():
            found = self._theirs["completions"](text, offset)
        return self._with_sizes(found, text) if "torch" in sys.modules else found

    def _with_sizes(self, found: Iterable[Any], text: str) -> Iterator[Any]:
        """Yield IPython's completions with the bytes of variables on a card."""
        left = SIZES_S
        for at, one in enumerate(found):
            if self._sizes and at < MAX_SIZED and left > 0:
                begun = CLOCK.monotonic()
                self._add_size(one, text)
                left -= CLOCK.monotonic() - begun
            yield one

    def _stop_sizes(self, _one: Any, _text: str) -> None:
        """Leave completions as they are after a fault, which is reported once."""
        self._sizes = False

    @shell_entry("say what a completion holds on the card", otherwise=_stop_sizes)
    def _add_size(self, one: Any, text: str) -> None:
        known = _BEFORE_CURSOR.search(text[: one.start])
        size = size_of_name(self._notebook.shell, (known[0] if known else "") + one.text)
        if size is not None:
            kind = one.type if one.type and one.type.isidentifier() else "instance"
            one.type = f"{kind}, {size}"

    @shell_entry("complete this line", otherwise=_their_completions)
    def completions(self, text: str, offset: int) -> Any:
        """Return every completion at an offset of a text.

        Front ends call this through IPython's completer.
        """
        found = find_completions(self._notebook, text, offset)
        if found is None:
            return self._their_completions(text, offset)
        if text.lstrip().startswith(QUESTION):
            estimates.prepare_estimates(self._notebook.shell)
        if found.blanked is not None:
            return self._their_completions(found.blanked, offset)
        from IPython.core.completer import Completion as Offered

        return iter([Offered(offset - len(found.word), offset, word) for word in found.words])

    def _their_complete(self, *arguments: Any, **named: Any) -> Any:
        with pass_warnings():
            return self._theirs["complete"](*arguments, **named)

    @shell_entry("complete this line", otherwise=_their_complete)
    def complete(
        self, text: str | None = None, line_buffer: str | None = None, cursor_pos: int | None = None
    ) -> Any:
        """Return the word and its completions (IPython's older API)."""
        line = (line_buffer if line_buffer is not None else text) or ""
        found = find_completions(
            self._notebook, line, len(line) if cursor_pos is None else cursor_pos
        )
        if found is None:
            return self._their_complete(text, line_buffer, cursor_pos)
        if found.blanked is not None:
            return self._their_complete(text, found.blanked, cursor_pos)
        return found.word, found.words


def find_completions(notebook: Notebook, text: str, offset: int) -> CompletionMatches | None:
    """Return the completions at an offset of a cell.

    None outside of nbmem's lines.
    """
    start = text.rfind("\n", 0, offset) + 1
    line = _LINE.fullmatch(text[start:offset])
    if line is None or (line[1] == "%%" and text[:start].strip()):
        return None
    before, word = _split(line[3])
    below = text[offset:].partition("\n")[2]
    if line[2] == "memtrace":
        asked = CompletionRequest(notebook, before, word, below)
        if line[1] == "%" and _is_statement(asked):
            blank = offset - len(line[3])
            return CompletionMatches(word, [], " " * blank + text[blank:])
        return _complete_argument(asked, OPTIONS, tuple)
    if not before:
        return CompletionMatches(
            word, _matching(word, [command.name for command in COMMANDS], [HELP.flag])
        )
    command = next((one for one in COMMANDS if one.name == before[0]), None)
    if command is None:
        return CompletionMatches(word, [])
    asked = CompletionRequest(notebook, before[1:], word, below)
    return _complete_argument(asked, tuple(command.options()), lambda: command.offers(asked))


def _split(line: str) -> tuple[tuple[str, ...], str]:
    """Split a line into the words before the cursor's and that word so far."""
    words = [(match.end(), match[0]) for match in _WORD.finditer(line)]
    last = words.pop()[1] if words and words[-1][0] == len(line) else ""
    return tuple(word for _, word in words), last


def _complete_argument(
    asked: CompletionRequest,
    options: tuple[CommandOption, ...],
    offers: Callable[[], Iterable[str]],
) -> CompletionMatches:
    """Complete a flag, the value of a flag, or another argument."""
    known = {option.flag: option for option in options}
    flag, equals, value = asked.word.partition("=")
    if equals and flag in known:
        asked = asked._replace(word=value)
        return CompletionMatches(value, _matching(value, candidates.values(known[flag], asked)))
    option = known.get(asked.before[-1]) if asked.before else None
    if option is not None and option.value is not None:
        return CompletionMatches(
            asked.word, _matching(asked.word, candidates.values(option, asked))
        )
    flags = [flag for flag in (*known, HELP.flag) if flag not in asked.before]
    if asked.word.startswith("-"):
        return CompletionMatches(asked.word, _matching(asked.word, flags))
    fresh = [word for word in offers() if word not in asked.before]
    return CompletionMatches(asked.word, _matching(asked.word, fresh, () if asked.word else flags))


def _is_statement(asked: CompletionRequest) -> bool:
    """Return whether the cursor is in the statement of `%memtrace`.

    The statement begins after the options.
    """
    takes_value = {option.flag for option in OPTIONS if option.value is not None}
    previous = ""
    for word in (*asked.before, asked.word):
        if word and not word.startswith("--") and previous not in takes_value:
            return True
        previous = word
    return False


def _matching(word: str, *offered: Iterable[str]) -> list[str]:
    """Return the words that start with the one at the cursor, ignoring case."""
    return [
        one
        for some in offered
        for one in some
        if one.lower().startswith(word.lower()) or one.startswith(f'"{word}')
    ]


def size_of_name(shell: Any, name: str, *, by_category: bool = False) -> str | None:
    """Write the bytes of a variable, or a member of one, on the cards.

    None for nothing.
    """
    if "torch" not in sys.modules or not _DOTTED.fullmatch(name):
        return None
    from nbmem.api.object_bytes import bytes_on_cards, member_at

    found = member_at(shell.user_ns, name)
    return None if found is None else bytes_on_cards(found, by_category=by_category)


class Inspection:
    """The line about memory in what one shell's inspector shows.

    Shift-Tab sends an `inspect_request`, which ipykernel answers by the shell's
    `object_inspect_mime`. That method of this one shell is replaced: IPython answers as before, and
    one line is put in front of its text.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._theirs: Any = None

    def install(self) -> None:
        """Replace the shell's method with this object's."""
        self._theirs = getattr(self._shell, _INSPECT, None)
        if self._theirs is not None:
            setattr(self._shell, _INSPECT, self.object_inspect_mime)

    def remove(self) -> None:
        """Restore the shell's own method."""
        if vars(self._shell).get(_INSPECT) == self.object_inspect_mime:
            delattr(self._shell, _INSPECT)

    def object_inspect_mime(self, oname: str, *arguments: Any, **named: Any) -> Any:
        """Return IPython's answer with a line about memory.

        A KeyError for an unknown name is IPython's own.
        """
        return self._with_line(self._theirs(oname, *arguments, **named), oname)

    def _unchanged(self, bundle: Any, _name: str) -> Any:
        return bundle

    @shell_entry("say what this holds on the card", otherwise=_unchanged)
    def _with_line(self, bundle: Any, name: str) -> Any:
        size = size_of_name(self._shell, name, by_category=True)
        if size is None or not isinstance(bundle, dict):
            return bundle
        changed = dict(bundle)
        if isinstance(text := bundle.get("text/plain"), str):
            changed["text/plain"] = f"{_LABEL:<13}{size}\n{text}"
        if html := bundle.get("text/html"):
            from html import escape

            changed["text/html"] = f"<p>{_LABEL} {escape(size)}</p>{html}"
        return changed
