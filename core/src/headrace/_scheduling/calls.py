"""One thread calls a function, and another waits for it.

**The main thread takes no lock of the scheduler**, for a signal handler or Ctrl-C may interrupt it
between any two instructions. An idle instance it claims and returns in single steps (see
`headrace._scheduling.fast_path`); all else is an *errand*, which a helper thread runs while the main
thread waits. So a handler finds no lock held by the code that it interrupted, and an interrupt leaves
nothing half done.

A destructor that runs while its thread holds a lock has what it asks for put off: a helper thread does
it later. A thread that is near the end of its stack is refused before anything has begun.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._scheduling.locks import (
    Signal,
    claimed,
    holds_a_lock,
    main_thread,
    near_stack_end,
    no_room,
)
from headrace._scheduling.process_threads import errands

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])


callers: dict[int, int] = {}
"""Identifier of a thread to that of the thread which waits for its current call."""

calls_run: dict[int, Call] = {}
"""Identifier of a thread to the call that it runs."""


def served_by(ident: int) -> set[int]:
    """Give thread ``ident`` and all threads that wait for what it does now."""
    found = {ident}
    waiting = callers.get(ident)
    while waiting is not None and waiting not in found:
        found.add(waiting)
        waiting = callers.get(waiting)
    return found


def serving(ident: int) -> set[int]:
    """Give the threads for which thread ``ident`` waits now."""
    found: set[int] = set()
    if callers:
        found = {one for one in list(callers) if one != ident and ident in served_by(one)}
    return found


def call_run_here() -> Call | None:
    """Give the call that the calling thread runs for another, None for none."""
    return calls_run.get(get_ident())


class Call:
    """A function that one thread runs while another waits for it.

    No lock guards it: the thread that pops the only item of a list has the right to run the function, or
    to give it up, and popping is one step of the interpreter.

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
        self._caller = get_ident()
        self._unbegun: list[None] = [None]
        self._signal = Signal()
        self._over = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, unless it was given up or called before."""
        if not claimed(self._unbegun):
            return
        me = get_ident()
        outer_caller, outer_call = callers.get(me), calls_run.get(me)
        callers[me], calls_run[me] = self._caller, self
        try:
            self._result = self._function(*self._args)  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self._error = error
        reset(callers, me, outer_caller)
        reset(calls_run, me, outer_call)
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
        if claimed(self._unbegun):
            return False
        if self._over:
            return getattr(self._error, "abandoned", False) is True
        if self.withdraw is None:
            return not self._over
        # This thread sets `given_up` first and reads `withdraw` then; the thread that runs the function
        # sets `withdraw` first and reads `given_up` then. Either this one withdraws, or that one does.
        return errand(self.withdraw) is True

    def withdrawn_by(self, withdraw: Callable[[], bool]) -> None:
        """Say how to take back what the function begins to wait for; called by the function."""
        self.withdraw = withdraw
        if self.given_up:
            withdraw()


def reset(table: dict[int, Any], ident: int, outer: Any) -> None:
    """Put back what a table of threads held of thread ``ident`` before; None for nothing."""
    if outer is None:
        table.pop(ident, None)
    else:
        table[ident] = outer


def errand(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let a helper thread call a function, and wait for it.

    Raises:
        BaseException: What the function raised. An interrupt of the calling thread has ``abandoned``
            set, which tells whether a backend still runs for it.
    """
    call = Call(handed_over.first, (partial(function, **kwargs) if kwargs else function, *args))
    try:
        errands.run(call.run)
    except RuntimeError:  # no more threads, or the interpreter ends
        call.run()
    return call.wait()


class _Box(deque[Call]):
    """Calls that one helper thread runs, and whether it may have looked for the last time."""

    left = False


class HandOver:
    """Functions that the main thread lets helper threads call, one after the other, without waiting.

    The main thread puts a call into the box first and then looks whether the helper thread has left; the helper
    thread says that it leaves first and looks into the box once more then. Either the main thread puts the
    call into a new box, or the helper thread finds it, or both: then it runs once all the same. An interrupt
    of the main thread may lose the call that it gives, and no other.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Forget, in a child process, what the parent's threads were to call."""
        self._box = _Box()
        self._box.left = True
        self._turn = threading.Lock()  # of helper threads, so that calls run in their order

    def give(self, function: Callable[..., Any], *args: Any) -> None:
        """Let a helper thread call a function, which must not raise. Called by the main thread."""
        call = Call(function, args)
        self._box.append(call)
        if not self._box.left:
            errands.attend()
            return
        box = _Box([call])
        errands.add((self._run_all, box))
        self._box = box
        try:
            errands.watch()
        except RuntimeError:  # no more threads, or the interpreter ends
            self._run_all(box)

    def first(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function once all is done that was given before. Called by a helper thread."""
        if not self._box.left:
            self._run_all(self._box)
        return function(*args)

    def _run_all(self, box: _Box) -> None:
        try:
            with self._turn:
                while box or not box.left:
                    with suppress(IndexError):  # it is empty
                        while True:
                            box.popleft().run()
                    box.left = True
        except BaseException:  # it hit this thread: another looks into the box
            errands.add((self._run_all, box))
            raise


handed_over = HandOver()


def reentrant(later: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Let a function that takes locks of the scheduler be called at any moment.

    Args:
        later: Called in its place, with the same arguments, in a thread that holds such a lock. None:
            a helper thread calls the function when it gets to it, and nobody waits.

    Raises:
        RecursionError: The thread is too near the end of its stack; nothing has begun.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if get_ident() == main_thread.ident:
                return errand(function, *args, **kwargs)
            if holds_a_lock():
                if later is not None:
                    return later(*args, **kwargs)
                errands.run(partial(function, *args, **kwargs))
                return None
            if near_stack_end():
                raise no_room()
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return decorate
