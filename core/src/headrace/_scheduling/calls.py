"""One thread calls a function, and another waits for it: who waits for whom, and giving it up."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace._scheduling.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "call_run_here", "served_by", "serves", "serving"]

_serving: dict[int, int] = {}
"""Identifier of a thread to that of the thread which waits for its current call."""

_calls: dict[int, Call] = {}
"""Identifier of a thread to the call that it runs."""


def serves(ident: int) -> bool:
    """Tell whether another thread waits for what thread ``ident`` does now."""
    return ident in _serving


def served_by(ident: int) -> set[int]:
    """Give thread ``ident`` and all threads that wait for what it does now."""
    found = {ident}
    waiting = _serving.get(ident)
    while waiting is not None and waiting not in found:
        found.add(waiting)
        waiting = _serving.get(waiting)
    return found


def serving(ident: int) -> set[int]:
    """Give the threads for which thread ``ident`` waits now."""
    found: set[int] = set()
    if _serving:
        found = {one for one in list(_serving) if one != ident and ident in served_by(one)}
    return found


def call_run_here() -> Call | None:
    """Give the call that the calling thread runs for another, None for none."""
    return _calls.get(threading.get_ident())


class Call:
    """A function that one thread runs while another waits for it.

    No lock guards it: what happens once is taken out of a list, which is one step.

    Attributes:
        withdraw: Set by the function: takes back what it waits for, and tells whether a backend still
            runs on it. None where there is nothing to take back.
        given_up: Whether the thread that waited does so no more.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.withdraw: Callable[[], bool] | None = None
        self.given_up = False
        self._function: Callable[..., Any] | None = function
        self._args = args
        self._caller = threading.get_ident()
        self._turn = [None]
        self._signal = Signal()
        self._over = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, unless it was given up or called before."""
        try:
            self._turn.pop()
        except IndexError:
            return
        me = threading.get_ident()
        outer_caller, outer_call = _serving.get(me), _calls.get(me)
        _serving[me], _calls[me] = self._caller, self
        try:
            self._result = self._function(*self._args)  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self._error = error
        _restore(_serving, me, outer_caller)
        _restore(_calls, me, outer_call)
        self._function, self._args = None, ()
        self._over = True
        self._signal.wake()

    def lost(self) -> None:
        """Take note that the thread which was to run it has died."""
        if not self._over:
            self._error = RuntimeError("the thread that owns the backend has died")
            self._over = True
            self._signal.wake()

    def wait(self, look_s: float | None = None) -> Any:
        """Wait for the end; give the result or raise the error.

        Args:
            look_s: How often to look up from the sleep; None for never.

        Raises:
            BaseException: What the function raised. An interrupt of the calling thread has
                ``abandoned`` set, which tells whether a backend still runs for it.
        """
        try:
            while not self._over:
                self._signal.sleep(look_s)
        except BaseException as interrupt:
            try:
                interrupt.abandoned = self._give_up()  # type: ignore[attr-defined]
            except BaseException as second:
                second.abandoned = True  # type: ignore[attr-defined]
                raise
            raise
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error, self
        return self._result

    def _give_up(self) -> bool:
        """Take the call back; True when a backend goes on without its caller."""
        self.given_up = True
        try:
            self._turn.pop()
        except IndexError:
            if self._over:
                return getattr(self._error, "abandoned", False) is True
        else:
            return False
        if self.withdraw is None:
            return not self._over
        # Whoever sets `withdraw` looks at `given_up` afterwards: one of the two sees the other.
        from headrace._scheduling.reentrant import errand

        return errand(self.withdraw) is True

    def withdrawn_by(self, withdraw: Callable[[], bool]) -> None:
        """Say how to take back what the function begins to wait for; called by the function."""
        self.withdraw = withdraw
        if self.given_up:
            withdraw()


def _restore(table: dict[int, Any], key: int, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
