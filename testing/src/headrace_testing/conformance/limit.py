"""A limit of time for what a backend may never end: a wait for itself, or a loop."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from headrace_testing.conformance.frames import current_frames
from headrace_testing.conformance.outcome import Broken

if TYPE_CHECKING:
    from collections.abc import Iterator

_ATTEMPTS = 30
"""How often the thread is interrupted, once a second: a backend may swallow the first interrupts."""

_GRACE_S = 15.0
"""How much later the process ends where no Python code runs any more."""


class Limit:
    """Interrupts, as Ctrl-C does, what the main thread does for longer than it may.

    In another thread nothing can be interrupted, and there is no limit. Nor is there where the application
    has another handler of SIGINT than Python's.

    Args:
        limit_s: The limit in seconds. ``math.inf`` for none.
        module: The module of the backend, whose lines are named first in the text of the error.
        exits: Where the stacks of all threads are written, a file descriptor, before the process ends because
            nothing can be interrupted: no thread runs Python, or every interrupt is swallowed. None to wait on.
    """

    def __init__(self, limit_s: float, module: str, exits: int | None) -> None:
        self.limit_s = limit_s
        self.over = False
        self._module = module
        self._exits = exits
        self._where = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Keep the limit during the ``with``.

        Raises:
            Broken: It was over.
        """
        if not _interruptible() or self.limit_s == math.inf:
            yield
            return
        self._ended.clear()
        watcher = threading.Thread(target=self._watch, name="headrace-limit", daemon=True)
        watcher.start()
        if self._exits is not None:
            faulthandler.dump_traceback_later(self.limit_s + _GRACE_S, exit=True, file=self._exits)
        try:
            yield
        except KeyboardInterrupt:
            if not self.over:
                raise
        finally:
            while not self._ended.is_set():
                with contextlib.suppress(KeyboardInterrupt), self._lock:  # one that was on its way
                    self._ended.set()
            if self._exits is not None:
                faulthandler.cancel_dump_traceback_later()
        if self.over:
            raise Broken(f"it did not end within {self.limit_s:g} s{self._where}")

    def _watch(self) -> None:
        if self._ended.wait(self.limit_s):
            return
        self._where = self._found()
        if self._exits is not None:
            faulthandler.cancel_dump_traceback_later()
        for _ in range(_ATTEMPTS):
            with self._lock:
                if self._ended.is_set():
                    return
                self.over = True
                if _python_handles_sigint():
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if self._ended.wait(1.0):
                return
        if self._exits is not None:
            text = (
                f"headrace-testing: nothing interrupts it after {self.limit_s:g} s{self._where}\n"
            )
            os.write(self._exits, text.encode(errors="replace"))
            faulthandler.dump_traceback(file=self._exits)
            os._exit(1)

    def _found(self) -> str:
        """Say in which line of the backend's module a thread is, or else the main thread."""
        stacks = [traceback.extract_stack(frame) for frame in current_frames().values()]
        file = getattr(sys.modules.get(self._module), "__file__", None)
        lines = [line for stack in stacks for line in stack if line.filename == file]
        main = current_frames().get(threading.main_thread().ident or 0)
        last = lines[-1] if lines else traceback.extract_stack(main)[-1]
        return f": it is in {last.name}, {last.filename}:{last.lineno}"


def _python_handles_sigint() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _interruptible() -> bool:
    """Return whether this thread can be interrupted from another one."""
    main = threading.current_thread() is threading.main_thread()
    return main and hasattr(signal, "pthread_kill") and _python_handles_sigint()
