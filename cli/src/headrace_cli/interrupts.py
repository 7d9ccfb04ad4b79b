"""Ctrl-C while the main thread is inside native code, which no signal handler interrupts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from headrace_cli.console import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

__all__ = ["Interrupts"]


class Interrupts:
    """Inside this, a first Ctrl-C raises KeyboardInterrupt and a second one ends the process.

    Python runs a signal handler in the main thread, between two steps of Python code. The first
    Ctrl-C therefore waits while that thread is inside a library, and while it waits for a lock. A
    second thread, which the interpreter notifies through a socket, sees each signal at once: at the
    first it sets `came` and calls `on_first`, which makes whatever the main thread waits for end; at
    the second it ends the process. Outside the main thread, and where Ctrl-C is ignored or has another
    handler, this does nothing.

    Attributes:
        came: Whether there was an interrupt.
        on_first: Called in a thread of its own at the first interrupt.
    """

    def __init__(self) -> None:
        self.came = False
        self.on_first: Callable[[], None] | None = None
        self._held = False
        self._active = False

    def __enter__(self) -> Interrupts:  # noqa: PYI034 - Self needs Python 3.11
        self._active = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._active:
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            signal.signal(signal.SIGINT, self._on_interrupt)
            threading.Thread(target=self._watch, name="headrace-interrupts", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._active:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.set_wakeup_fd(self._before)
            self._writer.close()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Delay KeyboardInterrupt to the end of the block, which must not block itself."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.came:
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: object) -> None:
        self.came = True
        if not self._held:
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Count what arrives until the other end is closed."""
        before = 0
        with self._reader:
            while numbers := self._reader.recv(64):
                now = before + numbers.count(signal.SIGINT)
                if now > 1:
                    os._exit(INTERRUPTED)  # no flush: the main thread may be blocked in one
                if now > before:
                    self.came = True
                    if self.on_first is not None:
                        threading.Thread(target=self.on_first, daemon=True).start()
                before = now
