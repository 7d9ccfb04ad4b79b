"""The settings of the process, which belongs to the application: read, and put back."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any


def _set_environment(value: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(value)


def _logging() -> tuple[int, list[logging.Handler]]:
    root = logging.getLogger()
    return root.level, list(root.handlers)


def _set_logging(value: tuple[int, list[logging.Handler]]) -> None:
    root = logging.getLogger()
    root.setLevel(value[0])
    root.handlers[:] = value[1]


def _handlers() -> dict[int, Any]:
    return {one: signal.getsignal(one) for one in sorted(signal.valid_signals())}


def _set_handlers(value: dict[int, Any]) -> None:
    for one, handler in value.items():
        if handler is not None and signal.getsignal(one) is not handler:
            with contextlib.suppress(OSError, ValueError):  # only the main thread may
                signal.signal(one, handler)


def _set_path(value: list[str]) -> None:
    sys.path[:] = value


def _set_collector(value: bool) -> None:
    (gc.enable if value else gc.disable)()


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "environment": (lambda: dict(os.environ), _set_environment),
    "working directory": (os.getcwd, os.chdir),
    "import path": (lambda: list(sys.path), _set_path),
    "level or handlers of the root logger": (_logging, _set_logging),
    "handlers of signals": (_handlers, _set_handlers),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "garbage collector's switch": (gc.isenabled, _set_collector),
    "default timeout of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
}
if hasattr(os, "sched_setaffinity"):
    _SETTINGS["set of processors"] = (
        lambda: os.sched_getaffinity(0),
        lambda value: os.sched_setaffinity(0, value),
    )
if hasattr(signal, "pthread_sigmask"):
    _SETTINGS["set of blocked signals"] = (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda value: signal.pthread_sigmask(signal.SIG_SETMASK, value),
    )


def settings() -> dict[str, Any]:
    """Give the settings of the process, by name."""
    return {name: get() for name, (get, _) in _SETTINGS.items()}


def restore(values: dict[str, Any]) -> None:
    """Put settings of the process back."""
    for name, (get, put) in _SETTINGS.items():
        if get() != values[name]:
            put(values[name])
