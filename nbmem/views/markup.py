"""Elements of HTML and SVG that escape whatever is not markup already, so no view can forget to."""

from __future__ import annotations

import base64
import html
import re
import textwrap


class Markup(str):
    """Text that is markup: `element` puts it in as it is."""

    __slots__ = ()


_VOID = {"br", "img", "meta"}


def one_line(text: str) -> str:
    """A foreign text without line breaks and control characters.

    XML allows no control characters at all, and an escape sequence in a tensor's name must not
    reach a terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


_PATH = re.compile(r"((?:[a-z]+ )*?)(\S*\.\S*)(.*)", re.DOTALL)


def clipped(text: str, width: int) -> str:
    """A text that fits a column of so many characters; what was cut off leaves dots."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def short_path(name: str, width: int = 48) -> str:
    """A name whose long path loses its middle: what it begins with and what it ends with tell most.

    Args:
        name: `saved by llm.engine.executor.worker.kv_caches[0] (2, 16) int8`, or without words.
        width: Characters that the path may have.
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
    """Fill lines with a text, no word broken.

    Args:
        text: The text.
        width: Of a line, in characters.
        first: What stands before the first line.
        rest: What stands before the others; None for blanks, as many as `first` has letters.
    """
    rest = " " * len(first) if rest is None else rest
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False
    )


def escape(text: str) -> Markup:
    """Text as markup that shows it."""
    return text if isinstance(text, Markup) else Markup(html.escape(one_line(text)))


def join(parts: list[Markup] | tuple[Markup, ...], between: str = "") -> Markup:
    """Several pieces of markup as one."""
    return Markup(between.join(parts))


def element(name: str, /, *children: str, **attributes: str | int | None) -> Markup:
    """One element.

    Args:
        name: Its tag.
        *children: Markup goes in as it is, any other text is escaped.
        **attributes: `stroke_width` becomes `stroke-width`, `for_` becomes `for`; None leaves the
            attribute out.
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


def data_uri(svg: str) -> str:
    """An SVG picture as an address: untrusted notebooks strip <svg> but keep such an image."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
