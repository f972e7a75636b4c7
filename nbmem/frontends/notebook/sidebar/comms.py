"""Manage a kernel's comms: one that pushes, and one for each page.

Requests arrive in a subshell's thread. They run between two cells in the cells' thread, since a
virtual card is activated per thread. The reply is sent from the subshell's thread: ipykernel routes
a comm's messages to the shell that last sent on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from nbmem.core.errors import UsageError
from nbmem.core.runtime.entry_points import entry
from nbmem.frontends.sidebar.messages import TARGET
from nbmem.frontends.sidebar.requests import RPC_TARGET

PATIENCE_S = 5
"""How long a request waits for its turn between two cells."""


class Comms:
    """The comms of a kernel: one that pushes, and one for each page.

    The pushing comm is never announced (`primary=False`): front ends without nbmem do not react,
    and `comm_info` lists it. Requests need separate comms: ipykernel routes a comm's messages to
    the (sub)shell that last sent on it, and the hub's thread counts as the main one.
    """

    def __init__(self) -> None:
        import comm

        self._manager = comm.get_comm_manager()
        self._push = comm.create_comm(target_name=TARGET, primary=False)
        self._pages: list[Any] = []

    def open(self, answer: Callable[[Any], dict[str, Any]]) -> None:
        """Register the pushing comm, and answer the requests of pages."""
        self._manager.register_comm(self._push)

        @entry("the sidebar's requests", on_fault=_ignore_fault)
        def opened(page: Any, _message: Any) -> None:
            @entry("a request of the sidebar's", on_fault=_ignore_fault)
            def handle_request(message: Any) -> None:
                page.send(answer(message["content"]["data"]))

            @entry("a page's end", on_fault=_ignore_fault)
            def closed(_message: Any) -> None:
                self._pages = [other for other in self._pages if other is not page]

            self._pages.append(page)
            page.on_msg(handle_request)
            page.on_close(closed)

        self._manager.register_target(RPC_TARGET, opened)

    def send(self, data: dict[str, Any]) -> None:
        """Send data to every page."""
        self._push.send(data)

    def close(self) -> None:
        """Close every comm, and stop taking requests."""
        self._manager.targets.pop(RPC_TARGET, None)
        pages, self._pages = self._pages, []
        for comm in (*pages, self._push):
            comm.close()


def _ignore_fault(_part: str, _err: Exception) -> None:
    """Drop a fault that no page and no cell can show; the log has it."""


def run_between_cells(kernel: Any, action: Callable[[], str]) -> str:
    """Run a function between cells in the kernel's main thread.

    Waits for its result and returns it. A page's requests arrive in a subshell's thread, but a
    virtual card, for one, is activated for the calling thread.

    Raises:
        UsageError: The main thread was busy for too long.
    """
    if threading.current_thread() is threading.main_thread():
        return action()
    future: Future[str] = Future()

    def call() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(action())
            except BaseException as err:  # noqa: BLE001 - raised below, where the page gets a reply
                future.set_exception(err)

    kernel.io_loop.add_callback(call)
    try:
        return future.result(timeout=PATIENCE_S)
    except TimeoutError:
        if future.cancel():
            raise UsageError("The kernel is busy. Ask again when the cell has ended.") from None
        return future.result()
