"""`nbmem strip [NOTEBOOK]`: remove a notebook's reports, for git."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from nbmem.core.files.size_limits import Limits
from nbmem.core.files.untrusted_input import read_content
from nbmem.frontends.cli.subcommand import EXIT_OK, Subcommand
from nbmem.views.mime_types import MIME

if TYPE_CHECKING:
    import argparse

HTML, TEXT = "text/html", "text/plain"
_TIME = re.compile(r" +\d[\d,]*\.\d+ m?s\b")
"""A duration in the form of a report: it differs in every run."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "notebook", metavar="NOTEBOOK", nargs="?", help="the file; without it, standard input"
    )


def run(options: argparse.Namespace) -> int:
    """Write the stripped notebook to standard output."""
    if options.notebook is None:
        data = sys.stdin.buffer.read()
    else:
        data = read_content(options.notebook, Limits())
    sys.stdout.buffer.write(stripped(data))
    sys.stdout.buffer.flush()
    return EXIT_OK


def stripped(data: bytes) -> bytes:
    """Return a notebook with its reports as text, without times.

    A file without reports, or one that is no notebook, is returned byte for byte: git filters all
    files through this function.
    file through this.
    """
    if MIME.encode() not in data:
        return data
    try:
        notebook = json.loads(data)
        outputs = [
            output["data"]
            for cell in notebook["cells"]
            for output in cell.get("outputs", ())
            if MIME in output.get("data", ())
        ]
        for forms in outputs:
            _strip(forms)
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        return f"{text}\n".encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data


def _strip(forms: dict[str, Any]) -> None:
    """Keep only an output's text."""
    del forms[MIME]
    forms.pop(HTML, None)
    text = forms.get(TEXT, "")
    lines = text if isinstance(text, list) else text.splitlines(keepends=True)
    forms[TEXT] = [_TIME.sub(" -", line) for line in lines]


COMMAND = Subcommand("strip", "a notebook without its reports, for git", configure, run)
