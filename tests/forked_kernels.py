"""Kernels forked from a process that has imported torch.

Their first cell takes half a second of CPU. In a new process it takes five, for the imports alone.
A Jupyter server starts this file with the arguments SOCKET -f FILE. That process has a kernel
forked behind the socket, passes interrupts on to it, and ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PRELOADED = ("ipykernel.ipkernel", "ipykernel.kernelapp", "torch", "torch._dynamo")
"""What each of these kernels imports up to its first traced cell."""
KERNEL = "with-torch"
"""The name of their kernelspec."""


def install(data: Path, socket_path: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Add the kernelspec to a folder of Jupyter's data; return the process that forks.

    Args:
        data: The folder.
        socket_path: Where the process listens.
        env: Its environment. Each kernel has its own.
    """
    spec = data / "kernels" / KERNEL / "kernel.json"
    spec.parent.mkdir(parents=True)
    words = [sys.executable, "-I", "-S", __file__, str(socket_path), "-f", "{connection_file}"]
    named = {"display_name": "Python 3 with torch", "language": "python"}
    spec.write_text(json.dumps({"argv": words, **named}))
    # It listens before it has imported anything: a kernel that comes early waits.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        inherited = listener.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", "tests.forked_kernels", str(inherited)],
            env=env,
            pass_fds=[inherited],
            cwd=Path(__file__).parents[1],
        )


def serve(inherited: int) -> None:
    """Fork a kernel for each connection to an inherited socket.

    A kernel is killed where its connection ends first. It has no thread that waits for that: nbmem
    would see one more thread of the user's.
    """
    import gc
    import importlib
    import selectors

    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # read by ipykernel when it is imported
    for name in PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # a collection in a kernel would copy the pages of all that is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    listener = socket.socket(fileno=inherited)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 4)
                    kernel = os.fork()
                    if kernel == 0:
                        selector.close()
                        listener.close()
                        connection.close()
                        _become_kernel(message, files)
                    for file in files:
                        os.close(file)
                    connection.sendall(f"{kernel}\n".encode())
                    selector.register(connection, selectors.EVENT_READ, os.pidfd_open(kernel))
                elif isinstance(key.fileobj, socket.socket):
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(key.data, signal.SIGKILL)
                    os.close(key.data)
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def _become_kernel(message: bytes, files: list[int]) -> None:
    """Take over what the process that asked was started with.

    The last of its files stays open: the other end sees when this process has ended.
    """
    import runpy

    arguments, folder, environment = json.loads(message)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()  # as Jupyter starts a kernel: a terminal's Ctrl-C is not for it
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment, JPY_PARENT_PID=str(os.getppid()))
    os.chdir(folder)
    sys.argv[1:] = arguments
    runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)
    sys.exit()


def stand_for_kernel(socket_path: str, arguments: list[str]) -> None:
    """Have a kernel forked, and return when it has ended."""
    alive, held = os.pipe()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_path)
        message = json.dumps([arguments, str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(connection, [message], [0, 1, 2, held])
        os.close(held)
        kernel = int(connection.makefile().readline())
        signal.signal(signal.SIGINT, lambda *_: os.kill(kernel, signal.SIGINT))
        os.read(alive, 1)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        stand_for_kernel(sys.argv[1], sys.argv[2:])
    else:
        serve(int(sys.argv[1]))
