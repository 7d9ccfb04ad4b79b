"""The settings of the process, which belongs to the application: read, and put back."""

from __future__ import annotations

import builtins
import contextlib
import gc
import locale
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
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
    return {number: signal.getsignal(number) for number in sorted(signal.valid_signals())}


def _set_handlers(value: dict[int, Any]) -> None:
    for number, handler in value.items():
        if handler is not None and signal.getsignal(number) is not handler:
            with contextlib.suppress(OSError, ValueError):  # only the main thread may
                signal.signal(number, handler)


def _set_path(value: list[str]) -> None:
    sys.path[:] = value


def _set_collector(value: bool) -> None:
    (gc.enable if value else gc.disable)()


def _umask() -> int | None:
    """Return the mask as Linux reports it; other systems allow to read it only by changing it for all threads."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), None)
    return None


def _set_umask(value: int | None) -> None:
    if value is not None:
        os.umask(value)


def _hooks() -> tuple[Any, ...]:
    return sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook


def _set_hooks(value: tuple[Any, ...]) -> None:
    sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook = value


def _set_trace(value: tuple[Any, Any]) -> None:
    threading.settrace(value[0])
    threading.setprofile(value[1])


def _loggers() -> dict[str, tuple[Any, ...]]:
    """Return the level, handlers, and switches of the loggers of Headrace, which the application configures."""
    return {
        name: (logger.level, tuple(logger.handlers), logger.propagate, logger.disabled)
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "headrace"
    }


def _set_loggers(value: dict[str, tuple[Any, ...]]) -> None:
    for name, (level, handlers, propagate, disabled) in value.items():
        logger = logging.getLogger(name)
        if logger.level != level:  # setting it empties what every logger of the process remembers
            logger.setLevel(level)
        logger.handlers[:] = handlers
        logger.propagate, logger.disabled = propagate, disabled


def _set_streams(value: tuple[Any, Any, Any]) -> None:
    sys.stdin, sys.stdout, sys.stderr = value


def _loop_policy() -> Any:
    """Return the policy of event loops; None for that of the standard library, which is made at the first need."""
    policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
    return None if type(policy).__module__.partition(".")[0] == "asyncio" else policy


def _set_loop_policy(value: Any) -> None:
    sys.modules["asyncio.events"]._event_loop_policy = value  # type: ignore[attr-defined]


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "environment": (lambda: dict(os.environ), _set_environment),
    "working directory": (os.getcwd, os.chdir),
    "import path": (lambda: list(sys.path), _set_path),
    "level or handlers of the root logger": (_logging, _set_logging),
    "handlers of signals": (_handlers, _set_handlers),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "garbage collector's switch": (gc.isenabled, _set_collector),
    "thresholds of the garbage collector": (
        gc.get_threshold,
        lambda value: gc.set_threshold(*value),
    ),
    "limit of logging.disable": (lambda: logging.root.manager.disable, logging.disable),
    "hooks of exceptions and of the prompt": (_hooks, _set_hooks),
    "trace functions of new threads": (
        lambda: (threading.gettrace(), threading.getprofile()),
        _set_trace,
    ),
    "loggers of Headrace": (_loggers, _set_loggers),
    "builtins": (
        lambda: {name: value for name, value in vars(builtins).items() if name != "_"},
        vars(builtins).update,
    ),
    "stream of stdin, stdout or stderr": (
        lambda: (sys.stdin, sys.stdout, sys.stderr),
        _set_streams,
    ),
    "policy of event loops": (_loop_policy, _set_loop_policy),
    "size of new threads' stacks": (threading.stack_size, threading.stack_size),
    "mask of new files": (_umask, _set_umask),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL),
        lambda value: locale.setlocale(locale.LC_ALL, value),
    ),
    "default timeout of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
}
try:
    import resource
except ImportError:  # only where the system is a POSIX one
    pass
else:
    _LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))

    def _limits() -> dict[str, tuple[int, int]]:
        return {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS}

    def _set_limits(value: dict[str, tuple[int, int]]) -> None:
        for name, limit in value.items():
            with contextlib.suppress(OSError, ValueError):  # settings that cannot be raised again
                resource.setrlimit(getattr(resource, name), limit)

    _SETTINGS["limits of the system"] = (_limits, _set_limits)
if hasattr(sys, "set_int_max_str_digits"):
    _SETTINGS["most digits of integers"] = (sys.get_int_max_str_digits, sys.set_int_max_str_digits)
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


SHARED = ("working directory", "stream of stdin, stdout or stderr")
"""What whoever runs the rules needs itself afterwards."""


def settings() -> dict[str, Any]:
    """Return the settings of the process, by name."""
    return {name: get() for name, (get, _) in _SETTINGS.items()}


def restore(values: dict[str, Any], names: Iterable[str] = _SETTINGS) -> None:
    """Put settings of the process back: all, or those of these names."""
    for name in names:
        get, put = _SETTINGS[name]
        if get() != values[name]:
            put(values[name])
