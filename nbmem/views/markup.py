"""Build HTML and SVG elements that escape every text but markup.

Every view escapes text through this module.
"""

from __future__ import annotations

import base64
import html
import re
import textwrap


class Markup(str):
    """Text that is markup: `element` does not escape it."""

    __slots__ = ()


_VOID = {"br", "img", "meta"}


def one_line(text: str) -> str:
    """Replace line breaks and control characters in a foreign text.

    XML allows no control characters at all, and an escape sequence in a tensor's name must not
    reach a terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


_PATH = re.compile(r"((?:[a-z]+ )*?)(\S*\.\S*)(.*)", re.DOTALL)


def clipped(text: str, width: int) -> str:
    """Clip a text to a column's width, ending in dots if it was cut."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def short_path(name: str, width: int = 48) -> str:
    """Shorten a name's long path by removing its middle.

    The start and the end carry the most information.

    Args:
        name: `saved by llm.engine.executor.worker.kv_caches[0] (2, 16) int8`, or a bare path.
        width: Maximum number of characters of the path.
    """
    found = _PATH.match(name)
    if found is None or len(found[2]) <= width:
        return name
    before, path, after = found.groups()
    first, *parts = path.split(".")
    kept: list[str] = []
    while parts and len(first) + len(".".join([parts[-1], *kept])) + len("...") <= width:
        kept.insert(0, parts.pop())
    if not kept or not parts:
        return name
    return f"{before}{first}...{'.'.join(kept)}{after}"


def wrapped(text: str, width: int, first: str = "", rest: str | None = None) -> str:
    """Wrap a text into lines, without breaking a word.

    Args:
        text: The text.
        width: Characters of a line.
        first: Text before the first line.
        rest: Text before the other lines; None for as many blanks as `first` has characters.
    """
    rest = " " * len(first) if rest is None else rest
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False
    )


def escape(text: str) -> Markup:
    """Escape a text as markup that shows it."""
    return text if isinstance(text, Markup) else Markup(html.escape(one_line(text)))


def join(parts: list[Markup] | tuple[Markup, ...], between: str = "") -> Markup:
    """Join pieces of markup into one."""
    return Markup(between.join(parts))


def element(name: str, /, *children: str, **attributes: str | int | None) -> Markup:
    """Build one element of HTML or SVG.

    Args:
        name: Its tag.
        *children: Markup is inserted unchanged, any other text is escaped.
        **attributes: `stroke_width` becomes `stroke-width`, `for_` becomes `for`; None omits the
            attribute.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(one_line(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    inner = "".join(escape(child) for child in children)
    return Markup(f"<{name}{written}>{inner}</{name}>")


def with_code(text: str) -> list[Markup]:
    """Write what stands between backticks as code; markup stays as it is."""
    if isinstance(text, Markup):
        return [text]
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one is left over: a text that was cut, or no name
        return [escape(text)]
    return [element("code", part) if at % 2 else escape(part) for at, part in enumerate(parts)]


def data_uri(svg: str) -> str:
    """Encode an SVG picture as a data URI for an image.

    Untrusted notebooks strip `<svg>` but retain such an image.
    """
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
