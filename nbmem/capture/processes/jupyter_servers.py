"""Query this user's Jupyter servers for their kernels.

They report the current path of a kernel's notebook, and whether the kernel is busy or idle.

A server writes its address and token into a file of the user's, which `jupyter server list` also
reads. No other server is queried, and none on another machine.
https://github.com/jupyter-server/jupyter_server/blob/v2.21.1/jupyter_server/serverapp.py#L3247
"""

from __future__ import annotations

import ipaddress
import json
import os
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 1.0
"""A server that takes longer is skipped."""
END_S = 30.0
"""Limit for a kernel's shutdown: its server waits for it, five seconds before it is killed."""
_MAX_BYTES = 1 << 20


class Kernel(NamedTuple):
    """A kernel as its Jupyter server describes it.

    Attributes:
        id: Jupyter's id.
        notebook: Path of the notebook, relative to its server's root.
        busy: Whether it runs a cell.
        server: The server that can shut it down.
    """

    id: str
    notebook: str | None
    busy: bool | None
    server: Server


class Server(NamedTuple):
    """One of this user's Jupyter servers: its URL and its token.

    The URL ends with a slash.
    """

    url: str
    token: str


def kernels() -> dict[str, Kernel]:
    """Return the kernels of this user's Jupyter servers, by Jupyter's id."""
    return {kernel.id: kernel for server in _servers() for kernel in _kernels_of(server)}


def shut_down(kernel: Kernel) -> bool:
    """Shut a kernel down through its server; return whether it succeeded."""
    try:
        _request(kernel.server, f"api/kernels/{kernel.id}", "DELETE", END_S)
    except Exception:  # noqa: BLE001 - refused, or it has ended
        return False
    return True


def _servers() -> list[Server]:
    files = (_server_in(path) for path in sorted(_runtime().glob("*server-*.json")))
    return [server for server in files if server is not None and _is_here(server.url)]


def _server_in(path: Path) -> Server | None:
    try:
        is_own = not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
        raw = json.loads(path.read_bytes()[:_MAX_BYTES]) if is_own else {}
        return Server(str(raw["url"]), str(raw.get("token") or ""))
    except Exception:  # noqa: BLE001 - any file content
        return None


def _runtime() -> Path:
    """Return the folder of Jupyter's runtime files.

    It is that of `jupyter_runtime_dir()`; without jupyter_core, Linux's default.
    """
    try:
        from jupyter_core.paths import jupyter_runtime_dir

        return Path(jupyter_runtime_dir())
    except Exception:  # noqa: BLE001 - no Jupyter here
        return Path("~/.local/share/jupyter/runtime").expanduser()


def _is_here(url: str) -> bool:
    """Return whether a URL is on this machine: the token goes nowhere else."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or parts.hostname is None:
        return False
    if parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        return False


def _kernels_of(server: Server) -> list[Kernel]:
    try:
        sessions = json.loads(_request(server, "api/sessions"))
        return [
            Kernel(
                id=str(session["kernel"]["id"]),
                notebook=session.get("path") or None,
                busy=_busy(session["kernel"].get("execution_state")),
                server=server,
            )
            for session in sessions
        ]
    except Exception:  # noqa: BLE001 - it has ended, or requires more than a token
        return []


def _busy(state: Any) -> bool | None:
    return {"busy": True, "idle": False}.get(state)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: the token is for this server."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        """Refuse the redirect."""


def _request(server: Server, path: str, method: str = "GET", limit_s: float = TIMEOUT_S) -> bytes:
    request = urllib.request.Request(  # noqa: S310 - http or https, to this machine
        server.url.rstrip("/") + "/" + path,
        method=method,
        headers={"Authorization": f"token {server.token}"} if server.token else {},
    )
    no_proxy = urllib.request.ProxyHandler({})
    opener = urllib.request.build_opener(no_proxy, _NoRedirects())
    with opener.open(request, timeout=limit_s) as answer:
        read: bytes = answer.read(_MAX_BYTES)
    return read
