"""Ctrl-C and SIGTERM while the main thread is inside native code, which no signal handler interrupts."""

from __future__ import annotations

import _thread
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""The handlers in whose place this module puts its own."""

_LATER_S = 0.01
"""Time for a destructor, or a step of Python, to end before a signal that seems to be lost is sent again."""


class Interrupts:
    """Inside this, a first Ctrl-C or SIGTERM raises KeyboardInterrupt and a second one ends the process.

    So what a command has begun to write is finished in both cases. Python runs a signal handler in the main thread,
    between two steps of Python code. So the handler of the first Ctrl-C waits while that thread is inside a library
    or waits for a lock. A second thread, which the interpreter notifies through a socket, sees each signal at once:
    at the first signal it sets `came` and calls `on_first`, which ends any wait of the main thread. At the second it
    ends the process. Outside the main thread, and where Ctrl-C has another handler, this class does nothing. A
    signal that is ignored stays so.

    Attributes:
        came: Whether there was an interrupt.
        status: The exit status after it: 130 after Ctrl-C, 143 after SIGTERM.
        on_first: Called in a thread of its own at the first interrupt.
    """

    def __init__(self) -> None:
        self.came = False
        self.status = 128 + signal.SIGINT
        self.on_first: Callable[[], None] | None = None
        self._handled = False
        self._again = 0
        self._active = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:  # noqa: PYI034 - Self needs Python 3.11
        handlers = {number: signal.getsignal(number) for number in _DEFAULTS}
        if handlers[signal.SIGINT] not in {signal.default_int_handler, signal.SIG_IGN}:
            handlers = {}
        if threading.current_thread() is threading.main_thread():
            # In the background shells have Ctrl-C ignored: then SIGTERM is caught alone.
            self._before = {n: old for n, old in handlers.items() if old is _DEFAULTS[n]}
        self._active = bool(self._before)
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
            self._descriptor = signal.set_wakeup_fd(
                self._writer.fileno(), warn_on_full_buffer=False
            )
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._lost
            for number in self._before:
                signal.signal(number, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            self._active = False
            for number, handler in self._before.items():
                signal.signal(number, handler)
            sys.unraisablehook = self._unraisable
            signal.set_wakeup_fd(self._descriptor)
            self._writer.close()

    def _on_interrupt(self, number: int, frame: object) -> None:
        self.came = self._handled = True
        self.status = 128 + number  # the thread of `_watch` may be later
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
            signal.pthread_kill(threading.main_thread().ident or 0, self.status - 128)
        else:
            _thread.interrupt_main()

    def _watch(self) -> None:
        """Count the signals until the other end of the socket is closed."""
        before = 0
        with self._reader:
            while numbers := self._reader.recv(64):
                interrupts = [number for number in numbers if number in self._before]
                now = before + len(interrupts)
                if now - self._again > 1:
                    # Without a flush, in which the main thread may be blocked.
                    os._exit(self.status)
                if now > before:
                    self.status = self.status if before else 128 + interrupts[0]
                    self.came = True
                    if self.on_first is not None:
                        threading.Thread(target=self.on_first, daemon=True).start()
                    if not before:
                        # A signal just before the main thread goes to sleep, or to another thread, does not wake it.
                        _thread.start_new_thread(self._send_again, ())
                before = now
