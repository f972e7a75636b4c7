"""Run calls that may hang in daemon threads that can be abandoned.

A hung driver neither returns nor fails, and Python cannot interrupt a call in C. So no caller waits
longer than a limit. The thread that hangs is a daemon: it keeps no process alive, and none of the
user's code waits for it.

Wherever a cell waits, NVML is called only like this. The sampler's first and last readings are
taken in its own thread; if one hangs, the thread is abandoned, once for the process. Only `nbmem
gpus` and the choice of a card wait longer: an idle driver takes seconds to wake up.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from nbmem.core.runtime.clock import CLOCK
from nbmem.core.runtime.fault_isolation import error_of

LIMIT_S = 1.0
"""Seconds after which a reading counts as hung. One takes microseconds, opening NVML some ms."""
COLD_S = 10.0
"""Limit for a command that lists cards: an idle driver takes seconds to wake up."""
GRACE_S = 0.1
"""Added to any limit: after a stopped process resumes, its limit has long passed."""

Answer = TypeVar("Answer")

_this_thread = threading.local()


class HungError(Exception):
    """A call has not returned within its limit."""


@contextlib.contextmanager
def expendable() -> Iterator[None]:
    """Mark this thread as expendable: its calls need no time limit.

    No other thread waits for it without a limit.
    """
    _this_thread.expendable = True
    try:
        yield
    finally:
        _this_thread.expendable = False


def call_with_timeout(call: Callable[[], Answer], limit_s: float) -> Answer:
    """Run a call that may hang, within a time limit.

    The thread for it costs 60 us. A thread that is expendable runs the call itself.

    Args:
        call: The call.
        limit_s: Seconds that it may take.

    Raises:
        HungError: It takes longer.
        Exception: What the call raises. Other exceptions (SystemExit) become a
            RuntimeError: the library raised them, and they must not end this thread.
    """
    if getattr(_this_thread, "expendable", False):
        return call()
    answers: list[Answer] = []
    errors: list[Exception] = []
    done = threading.Event()

    def run() -> None:
        try:
            with expendable():
                answers.append(call())
        except Exception as err:  # noqa: BLE001 - raised in the caller
            errors.append(err)
        except BaseException as err:  # noqa: BLE001 - Ctrl-C never reaches this thread
            errors.append(RuntimeError(error_of(err)))
        finally:
            done.set()

    thread = threading.Thread(target=run, name="nbmem waits for the driver", daemon=True)
    thread.start()
    if not (done.wait(limit_s) or done.wait(GRACE_S)):
        raise HungError
    thread.join(GRACE_S)  # it has nothing left to do
    if errors:
        raise errors.pop()
    return answers.pop()


def join_expendable(thread: threading.Thread, busy_since: Callable[[], float | None]) -> bool:
    """Wait for an expendable thread to end; return whether it did.

    Args:
        thread: The thread.
        busy_since: Returns when the current call began, on the monotonic clock; None between calls.
            A call that already hangs is not waited for again.

    Returns:
        Whether it ended within the limit.
    """
    limit = CLOCK.monotonic() + LIMIT_S
    while thread.is_alive():
        began = busy_since()
        left = (limit if began is None else min(limit, began + LIMIT_S)) - CLOCK.monotonic()
        if left <= 0 and busy_since() == began:
            thread.join(GRACE_S)
            return not thread.is_alive()
        thread.join(max(left, 0.0))
    return True
