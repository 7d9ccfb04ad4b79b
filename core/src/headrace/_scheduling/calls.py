"""One thread calls a function, and another waits for it.

**The main thread takes no lock of the scheduler**, for a signal handler or Ctrl-C may interrupt it
between any two instructions. The main thread claims and returns an idle instance in single steps (see
`headrace._scheduling.fast_path`); all else is an *errand*, which a helper thread runs while the main
thread waits. So a handler finds no lock held by the code that it interrupted, and an interrupt leaves
nothing half done.

The call of a destructor that runs while its thread holds a lock is put off: a helper thread does it
later. The call of a thread that is near the end of its stack is refused before anything has begun, and so
is that of a destructor at the end of the interpreter, when no other thread runs any more.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._portable import is_abandoned
from headrace._scheduling.locks import (
    Signal,
    drained,
    holds_a_lock,
    main_thread,
    near_stack_end,
    no_room,
    took_token,
)
from headrace._scheduling.process_threads import errands
from headrace.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])


calls_run: dict[int, Call] = {}
"""By the identifier of a thread, the call that the thread runs."""


def served_by(ident: int) -> set[int]:
    """Give thread ``ident`` and all threads that wait for the call that it runs, directly or through others."""
    found = {ident}
    call = calls_run.get(ident)
    while call is not None and call.caller not in found:
        found.add(call.caller)
        call = calls_run.get(call.caller)
    return found


def serving(ident: int) -> set[int]:
    """Give the threads that run calls for which thread ``ident`` waits."""
    return {one for one in list(calls_run) if one != ident and ident in served_by(one)}


def withdrawn_by(withdraw: Callable[[], bool]) -> Call | None:
    """Say how to take back the requests for which the calling thread is about to wait.

    Returns:
        The call that this thread runs for another, which may give it up; None for none.
    """
    call = calls_run.get(get_ident())
    if call is not None:
        call.withdraw = withdraw
        if call.given_up:
            withdraw()
    return call


class Call:
    """A function that one thread runs while another waits for it.

    No lock guards it: the thread that pops the only item of a list has the right to run the function, or
    to give it up, and popping is one step of the interpreter.

    Attributes:
        caller: The identifier of the thread that waits for the call.
        withdraw: Set by the function: takes back the requests for which it waits, and tells whether a
            backend still runs on any of them. None while there are none to take back.
        given_up: Whether the thread that waited for the call has stopped waiting.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.withdraw: Callable[[], bool] | None = None
        self.given_up = False
        self._function: Callable[..., Any] | None = function
        self._args = args
        self.caller = get_ident()
        self._unbegun: list[None] = [None]
        self._signal = Signal()
        self._over = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, unless the call was given up or has begun before."""
        if not took_token(self._unbegun):
            return
        me = get_ident()
        outer = calls_run.get(me)
        calls_run[me] = self
        try:
            self._result = self._function(*self._args)  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the waiting thread
            self._error = error
        reset(calls_run, me, outer)
        self._function, self._args = None, ()
        self._over = True
        self._signal.wake()

    def lost(self) -> None:
        """Fail the call, for the thread that was to run it has died."""
        if not self._over:
            self._error = RuntimeError("the thread that owns the backend has died")
            self._over = True
            self._signal.wake()

    def wait(self, look_s: float | None = None) -> Any:
        """Wait for the end; give the result or raise the error.

        Args:
            look_s: Wake up at least every ``look_s`` seconds, to notice an interrupt; None for never.

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
        """Give the call up; True when a backend goes on without the thread that waited."""
        self.given_up = True
        if took_token(self._unbegun):
            return False
        if self._over:
            return is_abandoned(self._error)
        if self.withdraw is None:
            return not self._over
        # This thread sets `given_up` and then reads `withdraw`; the thread that runs the function sets
        # `withdraw` and then reads `given_up`. In either order at least one of the two withdraws.
        return errand(self.withdraw) is True


def reset(table: dict[int, Any], ident: int, outer: Any) -> None:
    """Restore ``outer``, which a table held for thread ``ident`` before; None where the table held nothing."""
    if outer is None:
        table.pop(ident, None)
    else:
        table[ident] = outer


def errand(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have a helper thread call a function, and wait for its end.

    Raises:
        ClosedError: The interpreter ends: only this thread still runs, and no lock need ever be left.
        BaseException: What the function raised. An interrupt of the calling thread has ``abandoned``
            set, which tells whether a backend still runs for it.
    """
    if sys.is_finalizing():
        raise ClosedError("the interpreter ends")
    call = Call(handed_over.first, (partial(function, **kwargs) if kwargs else function, *args))
    try:
        errands.run(call.run)
    except RuntimeError:  # no more threads, or the interpreter ends
        call.run()
    return call.wait()


class _Box(deque[Call]):
    """Calls for one helper thread; ``left`` once that thread may have looked into the box for the last time."""

    left = False


class HandOver:
    """Functions that the main thread has helper threads call, one after the other, without waiting.

    The main thread puts a call into the box and then reads ``left``; the helper thread sets ``left`` and then
    looks into the box once more. Either the main thread sees ``left`` and puts the call into a new box, or the
    helper thread finds the call. If both happen, the call still runs once. An interrupt of the main thread
    may lose the call that is being given, and no other.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Forget, in a child process, what the parent's threads were to call."""
        self._box = _Box()
        self._box.left = True
        # Held by the thread that runs calls, so that they run in order. That is the main thread where no helper
        # can be started; then a call, or a signal handler inside one, may come here again.
        self._turn = threading.RLock()

    def give(self, function: Callable[..., Any], *args: Any) -> None:
        """Have a helper thread call a function, which must not raise. Called by the main thread."""
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
        """Call a function after all calls that were given before it have run. Called by a helper thread."""
        if not self._box.left:
            self._run_all(self._box)
        return function(*args)

    def _run_all(self, box: _Box) -> None:
        try:
            with self._turn:
                while box or not box.left:
                    for call in drained(box.popleft):
                        call.run()
                    box.left = True
        except BaseException:  # it hit this thread: another helper looks into the box
            errands.add((self._run_all, box))
            raise


handed_over = HandOver()


def reentrant(later: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Let a function that takes locks of the scheduler be called at any moment.

    Args:
        later: Called instead of the function, with the same arguments, in a thread that holds such a
            lock. None: a helper thread calls the function later, and the calling thread does not wait.

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
