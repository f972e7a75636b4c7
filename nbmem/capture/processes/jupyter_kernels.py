"""Ask another of the user's Jupyter kernels to free its cached memory.

The request goes through Jupyter's own client. It runs nbmem's own command and nothing else, between
two of that kernel's cells, as a front end would run it. The connection's key is in a file that only
this user can read.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

from nbmem.core.runtime.interrupts import reraise_if_from_signal

PATIENCE_S = 10.0
_FILE = re.compile(r"kernel-[0-9a-f-]{36}\.json$")
_ASK = "get_ipython().run_line_magic('nbmem', 'free cache')"
_MAX_CHARACTERS = 4_096
"""Maximum characters of a reply."""


def free_cache(pid: int) -> str | None:
    """Have a kernel free its cached memory; return its answer or None.

    None if the kernel did not reply.

    Args:
        pid: The kernel's process. The caller has checked that it is the user's own.
    """
    try:
        path = _connection(pid)
        return None if path is None else _answer(path)
    except Exception as err:  # noqa: BLE001 - it has ended, or Jupyter's client is missing
        reraise_if_from_signal(err)
        return None


def _connection(pid: int) -> Path | None:
    """Return a kernel's connection file; None if it has none.

    Also None unless the file belongs to this user and only this user can write it.
    """
    import psutil

    named = (Path(word) for word in psutil.Process(pid).cmdline() if _FILE.search(word))
    path = next(named, None)
    if path is None:
        return None
    found = path.stat()
    is_own = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    closed = sys.platform == "win32" or not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return path if is_own and closed else None


def _answer(path: Path) -> str | None:
    from jupyter_client.blocking.client import BlockingKernelClient

    replies: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream":
            replies.append(str(content["text"]))
        elif message["msg_type"] in {"display_data", "execute_result"}:
            replies.append(str(content["data"].get("text/plain", "")))

    client: Any = BlockingKernelClient(connection_file=str(path))
    client.load_connection_file()
    client.start_channels(hb=False)
    try:
        client.wait_for_ready(timeout=PATIENCE_S)  # else its first output may be missed
        reply = client.execute_interactive(
            _ASK, store_history=False, allow_stdin=False, timeout=PATIENCE_S, output_hook=hear
        )
    finally:
        client.stop_channels()
    if reply["content"]["status"] != "ok":
        return None
    return "".join(replies)[:_MAX_CHARACTERS].strip()
