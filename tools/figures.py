"""Write labextension/src/explorer/figures.json, with Bokeh.

The pictures are those that nbmem.views.explorer makes. A report's pictures are the same Bokeh
documents every time, so no notebook has to import Bokeh for them, or to hold them. `python3
tools/figures.py` writes them; it needs Bokeh.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nbmem.views.explorer.figures import figures  # noqa: E402 - this checkout's

TARGET = ROOT / "labextension" / "src" / "explorer" / "figures.json"
_ID = re.compile(r'"p(\d+)"')


def written() -> str:
    """Return the documents as JSON, with reproducible ids.

    The ids do not depend on what else Bokeh made in this process.
    """
    return json.dumps([[name, numbered(document)] for name, document in figures()], indent=1) + "\n"


def numbered(document: str) -> str:
    """Renumber a document's models from 1001, in order of appearance."""
    numbers = {key: 1001 + i for i, key in enumerate(dict.fromkeys(_ID.findall(document)))}
    return _ID.sub(lambda found: f'"p{numbers[found[1]]}"', document)


def unversioned(text: str) -> str:
    """Return the documents without the version of Bokeh in them."""
    return re.sub(r'\\"version\\":\\"[^"\\]*\\"', "", text)


def main() -> None:
    """Write the file."""
    TARGET.write_text(written(), encoding="utf-8")


if __name__ == "__main__":
    main()
