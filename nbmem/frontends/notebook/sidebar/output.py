"""Replace an output of a cell from anywhere, even after the cell."""

from __future__ import annotations

import copy
import threading
import uuid
from typing import Any

from nbmem.core.runtime.entry_points import entry


class CellOutput:
    """The place of a cell's output: its display id and its parent request.

    Attributes:
        id: The display id; None once the cell has cleared its output, since updates would be lost.
    """

    def __init__(self, shell: Any) -> None:
        self.id: str | None = f"nbmem-{uuid.uuid4().hex}"
        self._publisher = shell.display_pub
        self._parent = shell.kernel.get_parent()
        self._lock = threading.Lock()

    def another(self) -> CellOutput:
        """Return the place of another output of the same cell."""
        other = copy.copy(self)  # their updates share a lock, as they share a socket
        other.id = f"nbmem-{uuid.uuid4().hex}"
        return other

    def update(self, bundle: dict[str, Any]) -> None:
        """Replace the output with a MIME bundle.

        It does not use publish(), which would flush the user's streams and use a subshell's parent.
        """
        with self._lock:
            if self.id is not None:
                content = {
                    "data": bundle,
                    "metadata": {},
                    "transient": {"display_id": self.id},
                }
                self._publisher.session.send(
                    self._publisher.pub_socket,
                    "update_display_data",
                    content,
                    parent=self._parent,
                    ident=self._publisher.topic,
                )

    def watch(self) -> None:
        """Start watching for the cell to clear its output."""
        self._publisher.register_hook(self._notice)

    def unwatch(self) -> None:
        """Stop watching for the cell to clear its output; the cell ends."""
        self._publisher.unregister_hook(self._notice)

    def on_fault(self, _part: str, _err: Exception) -> None:
        """Forget the display id after a fault; the report does without."""
        self.id = None

    @entry("the output's place", otherwise=lambda _self, message: message)
    def _notice(self, message: dict[str, Any]) -> dict[str, Any]:
        """Forget the display id when the cell clears its output."""
        if message["header"]["msg_type"] == "clear_output":
            with self._lock:
                self.id = None
        return message


def can_replace_output(shell: Any) -> bool:
    """Return whether the shell's outputs can be replaced.

    False in a terminal, and while a cell's output is captured.
    """
    return getattr(shell, "kernel", None) is not None and hasattr(
        shell.display_pub, "register_hook"
    )
