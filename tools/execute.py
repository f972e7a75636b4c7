"""Execute a notebook; keep it, its last recording and the report.

It runs in this environment.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def main(notebook: Path, out: Path) -> int:
    """Execute the notebook, print the report and write files to `out`.

    The report is printed as text. The notebook, the recording and the report as HTML are written.

    The notebook's own kernel saves the recording after its last cell, in a cell that is not saved.
    The report is then made by `nbmem report FILE`, as from any recording.

    Returns:
        0; 1 if a cell failed or nothing was traced.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError
    except ModuleNotFoundError as err:
        raise SystemExit(f"{err.name} is missing here: pip install nbclient ipykernel.") from None

    nb: Any = nbformat.read(notebook, as_version=4)
    executed, recording = out / notebook.name, out / f"{notebook.stem}.nbmem"
    recording.unlink(missing_ok=True)
    save = nbformat.v4.new_code_cell(f"%nbmem save {recording.name}")
    client = NotebookClient(
        nb,
        timeout=600,
        resources={"metadata": {"path": str(out)}},
        extra_arguments=["--log-level=40"],  # its remarks on sockets are not for this reader
        on_cell_start=_announce_cell,
    )
    print(f"Executing {notebook.name}", flush=True)
    try:
        nb.cells.append(save)
        client.execute()
    except CellExecutionError as err:
        print(f"A cell failed; it is in {executed}.\n\n{err}", file=sys.stderr)
        return 1
    finally:
        nb.cells.remove(save)
        nbformat.write(nb, executed)
    if not recording.exists():
        print(f"The notebook ran, but nothing was saved: {_texts(save)}", file=sys.stderr)
        return 1
    return _report(executed, recording, out / "report.html")


def _announce_cell(cell: Any, cell_index: int) -> None:
    """Print the number and the first line of a cell that begins."""
    if cell.cell_type == "code":
        print(f"  cell {cell_index + 1}: {cell.source.partition(chr(10))[0][:70]}", flush=True)


def _texts(cell: Any) -> str:
    """Return the outputs of a cell as plain text."""
    said = [one.get("text") or one.get("data", {}).get("text/plain", "") for one in cell.outputs]
    return " ".join(said) or "no reason was given."


def _report(executed: Path, recording: Path, page: Path) -> int:
    command = [sys.executable, "-m", "nbmem", "report", str(recording), "--html", str(page)]
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        print(f"\nnotebook   {executed}\nrecording  {recording}")
        print(f"report     {page}: open it in a browser")
    return status


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
