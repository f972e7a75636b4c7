"""The line under a traced cell while it runs; the report takes its place."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from nbmem.core.entry import entry
from nbmem.core.units import format_bytes
from nbmem.ipython.tracer import show_bundle
from nbmem.views.markup import element

if TYPE_CHECKING:
    from nbmem.live.messages import Sample

logger = logging.getLogger("nbmem")

INTERVAL_S = 0.5
_STYLE = "font-variant-numeric:tabular-nums;opacity:0.8"


class Progress:
    """One traced cell's line: shown in the cell's thread, renewed from the hub's.

    Args:
        shell: The kernel's shell.
        title: The trace's.
        html: Whether there is more than plain text.
    """

    def __init__(self, shell: Any, title: str, *, html: bool) -> None:
        self._title = title
        self._html = html
        self._publisher = shell.display_pub
        self._parent = shell.kernel.get_parent()
        self._id: str | None = f"nbmem-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._text = f"{title}: traced"
        self._due = time.monotonic() + INTERVAL_S
        show_bundle(self._bundle(), display_id=self._id)
        self._publisher.register_hook(self._notice)

    @entry("the line under the cell")
    def renew(self, sample: Sample) -> None:
        """Write what was read, if it is time and it says something else."""
        text = _line(self._title, sample)
        if time.monotonic() < self._due or text == self._text:
            return
        with self._lock:
            if self._id is None:
                return
            self._due = time.monotonic() + INTERVAL_S
            self._text = text
            content = {
                "data": self._bundle(),
                "metadata": {},
                "transient": {"display_id": self._id},
            }
            # Not by publish(): it would flush the user's streams and take a subshell's parent.
            self._publisher.session.send(
                self._publisher.pub_socket,
                "update_display_data",
                content,
                parent=self._parent,
                ident=self._publisher.topic,
            )

    def end(self) -> str | None:
        """Write no more.

        Returns:
            The display id of the line, for what takes its place; None if the cell cleared it.
        """
        self._publisher.unregister_hook(self._notice)
        with self._lock:
            shown, self._id = self._id, None
        return shown

    def lost(self, _part: str, _err: Exception) -> None:
        """The line is not renewed any more; the report does without it."""
        self._id = None

    @entry("the line under the cell", otherwise=lambda _self, message: message)
    def _notice(self, message: dict[str, Any]) -> dict[str, Any]:
        """See the cell clear its output: the line is gone, and updates of it would go nowhere."""
        if message["header"]["msg_type"] == "clear_output":
            with self._lock:
                self._id = None
        return message

    def _bundle(self) -> dict[str, str]:
        bundle = {"text/plain": self._text}
        if self._html:
            bundle["text/html"] = str(element("div", self._text, style=_STYLE))
        return bundle


def _line(title: str, sample: Sample) -> str:
    """`train: forward, step 3; 2.10 GiB allocated, peak 3.40 GiB`."""
    where = [sample.phase] if sample.phase else []
    where += [f"step {sample.step}"] if sample.step is not None else []
    bytes_ = [
        f"{f'card {card.index} ' if len(sample.cards) > 1 else ''}"
        f"{format_bytes(card.allocated)} allocated, peak {format_bytes(card.peak)}"
        for card in sample.cards
    ]
    return f"{title}: {'; '.join([*([', '.join(where)] if where else []), *bytes_]) or 'traced'}"
