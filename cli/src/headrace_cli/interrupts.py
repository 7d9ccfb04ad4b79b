"""Ctrl-C while the main thread is inside native code, which no signal handler interrupts."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from headrace_cli.console import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

_LATER_S = 0.01
"""Time for a destructor, or a step of Python, to end before a signal that seems to be lost is sent again."""


class Interrupts:
    """Inside this, a first Ctrl-C raises KeyboardInterrupt and a second one ends the process.

    Python runs a signal handler in the main thread, between two steps of Python code. So the handler
    of the first Ctrl-C waits while that thread is inside a library or waits for a lock. A second
    thread, which the interpreter notifies through a socket, sees each signal at once: at the first signal it sets
    `came` and calls `on_first`, which ends any wait of the main thread; at the second it ends the process. Outside
    the main thread, and where Ctrl-C is ignored or has another handler, this class does nothing.

    Attributes:
        came: Whether there was an interrupt.
        on_first: Called in a thread of its own at the first interrupt.
    """

    def __init__(self) -> None:
        self.came = False
        self.on_first: Callable[[], None] | None = None
        self._held = False
        self._handled = False
        self._again = 0
        self._active = False

    def __enter__(self) -> Interrupts:  # noqa: PYI034 - Self needs Python 3.11
        self._active = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._active:
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            try:
                # Before the handler is set: where no thread can be started, nothing else has to be undone.
                threading.Thread(
                    target=self._watch, name="headrace-interrupts", daemon=True
                ).start()
            except RuntimeError:
                self._reader.close()
                self._writer.close()
                raise
            self._before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._lost
            signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._active:
            self._active = False
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = self._unraisable
            signal.set_wakeup_fd(self._before)
            self._writer.close()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Delay KeyboardInterrupt to the end of the ``with``, in which nothing may wait for long."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self.came:
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: object) -> None:
        self.came = self._handled = True
        if not self._held:
            raise KeyboardInterrupt

    def _lost(self, about: sys.UnraisableHookArgs) -> None:
        """Send an interrupt again that has hit a destructor or a callback of the garbage collector.

        The interpreter ignores an exception there, and calls this hook with it. Another thread sends the
        signal a little later. `Thread.start` is not used to start that one: it would wait here until the
        thread runs, and its signal would interrupt this wait.
        """
        if not issubclass(about.exc_type, KeyboardInterrupt):
            self._unraisable(about)
            return
        self._handled = False
        _thread.start_new_thread(self._send_again, ())

    def _send_again(self) -> None:
        threading.Event().wait(_LATER_S)
        if self._handled or not self._active:
            return  # the main thread has seen it, or `came`, and ended the command meanwhile
        self._handled = True  # once is enough: by now that thread sleeps, and this wakes it
        self._again += 1
        if hasattr(signal, "pthread_kill"):
            # Unlike `interrupt_main`, a real signal also ends a wait for a lock.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            _thread.interrupt_main()

    def _watch(self) -> None:
        """Count the signals until the other end of the socket is closed."""
        before = 0
        with self._reader:
            while numbers := self._reader.recv(64):
                now = before + numbers.count(signal.SIGINT)
                if now - self._again > 1:
                    # Without a flush, in which the main thread may be blocked.
                    os._exit(INTERRUPTED)
                if now > before:
                    self.came = True
                    if self.on_first is not None:
                        threading.Thread(target=self.on_first, daemon=True).start()
                    if not before:
                        # A signal just before the main thread goes to sleep, or to another thread, does not wake it.
                        _thread.start_new_thread(self._send_again, ())
                before = now
