"""Make this Python look to nbmem as on another system.

Imported by every Python that has this folder on its path. The libraries take what they need of the
real system while they are imported here; what is called later finds the other one. Only nbmem is
told another `sys.platform`.
"""

import builtins
import functools
import importlib
import os
import sys

PLATFORM = os.environ["NBMEM_TEST_PLATFORM"]

NOT_ON_WINDOWS = {
    "os": "fork forkpty killpg getpgid setpgid setsid getuid geteuid getgid getegid pread pwrite"
    " sysconf uname statvfs fchmod mkfifo nice O_NONBLOCK O_CLOEXEC O_NOFOLLOW O_DIRECTORY"
    " sched_getaffinity register_at_fork wait waitid ttyname",
    "signal": "pthread_sigmask pthread_kill sigwait setitimer alarm SIG_BLOCK SIG_SETMASK"
    " SIG_UNBLOCK SIGKILL SIGALRM SIGUSR1 SIGUSR2 SIGHUP SIGQUIT",
    "select": "poll epoll",
    "mmap": "MADV_DONTNEED MADV_WILLNEED MADV_FREE",
}
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty")
LOOK_AT_THE_SYSTEM = (
    *("multiprocessing.popen_spawn_posix", "multiprocessing.resource_tracker", "psutil"),
    *("IPython.core.interactiveshell", "torch.utils.data"),
)
"""Libraries that decide as they are imported."""
NOT_ON_MACOS = {"os": "sched_getaffinity", "select": "epoll"}


def take_away(names):
    """Remove names from modules of Python's library."""
    for module, gone in names.items():
        for name in gone.split():
            if hasattr(sys.modules[module], name):
                delattr(sys.modules[module], name)


def spawn_alone():
    """Leave multiprocessing one way to start a process."""
    import multiprocessing
    from multiprocessing import context, resource_tracker

    spawn = context._concrete_contexts["spawn"]
    context._concrete_contexts.clear()
    context._concrete_contexts["spawn"] = spawn
    multiprocessing.set_start_method("spawn", force=True)
    resource_tracker._HAVE_SIGMASK = False


def kill_at_once():
    """Let terminate() end a process at once, and kill() be the same."""
    import subprocess

    def end(self):
        self.send_signal(9)

    subprocess.Popen.terminate = subprocess.Popen.kill = end


def watch_sockets_alone():
    """Let select() refuse what is no socket."""
    import select
    import stat

    real = select.select

    def select_sockets(read, write, wrong, *patience):
        for one in (*read, *write, *wrong):
            handle = one if isinstance(one, int) else one.fileno()
            if not stat.S_ISSOCK(os.fstat(handle).st_mode):
                raise OSError(10038, "An operation was attempted on something that is not a socket")
        return real(read, write, wrong, *patience)

    select.select = select_sockets


def keep_open_files():
    """Refuse to remove or replace open files."""
    import shutil

    shutil._use_fd_functions = False

    def refusing(real):
        def guarded(*paths, **options):
            for path in paths:
                found = os.path.realpath(os.fspath(path))
                if isinstance(found, str) and is_open(found):
                    raise PermissionError(13, "Another process uses the file", str(path))
            return real(*paths, **options)

        return guarded

    def is_open(path):
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}") == path:
                    return True
            except OSError:
                continue
        with open("/proc/self/maps", "rb") as maps:
            return path.encode() in maps.read()

    for name in ("remove", "unlink", "rename", "replace"):
        setattr(os, name, refusing(getattr(os, name)))


class System:
    """Stand for `sys`, with another platform."""

    platform = PLATFORM
    __dict__ = property(lambda _: vars(sys))

    def __getattr__(self, name):
        return getattr(sys, name)

    def __setattr__(self, name, value):
        setattr(sys, name, value)

    def __delattr__(self, name):
        delattr(sys, name)


def tell_nbmem():
    """Give nbmem's modules another `sys`."""
    real, other = builtins.__import__, System()

    @functools.wraps(real)
    def import_(name, names=None, *others, **options):
        if name == "sys" and str((names or {}).get("__package__")).partition(".")[0] == "nbmem":
            return other
        return real(name, names, *others, **options)

    builtins.__import__ = import_


def hide_proc():
    """Let nbmem open nothing in Linux's folders, and no text without saying its encoding."""
    import io

    def nbmem_opens():
        frame = sys._getframe(2)
        while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "pathlib":
            frame = frame.f_back
        return bool(frame) and str(frame.f_globals.get("__package__")).partition(".")[0] == "nbmem"

    def hiding(real):
        def opened(path, *arguments, **options):
            if nbmem_opens():
                if str(path).startswith(("/proc", "/sys")):
                    raise FileNotFoundError(2, "No such file", str(path))
                mode = options.get("mode", arguments[0] if arguments else "r")
                if isinstance(mode, str) and "b" not in mode and options.get("encoding") is None:
                    assert len(arguments) > 2, f"{path} is opened without an encoding"
            return real(path, *arguments, **options)

        return opened

    builtins.open = io.open = hiding(io.open)
    os.open = hiding(os.open)


def main():
    """Change what a program sees of the system."""
    for name in LOOK_AT_THE_SYSTEM:
        importlib.import_module(name)
    if PLATFORM == "win32":
        take_away(NOT_ON_WINDOWS)
        for name in MODULES:
            sys.modules[name] = None
        kill_at_once()
        watch_sockets_alone()
        keep_open_files()
    else:
        take_away(NOT_ON_MACOS)
    spawn_alone()
    hide_proc()
    tell_nbmem()


main()
