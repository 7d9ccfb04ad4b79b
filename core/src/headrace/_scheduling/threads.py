"""The helper threads of the process, and the rule for the main thread.

**The main thread takes no lock of a scheduler.** Python runs signal handlers, and raises Ctrl-C, in the main thread,
between any two instructions. So what the main thread asks for a helper thread does, while the main thread waits on a raw
lock (`run_on_helper`). Its own work is limited to steps that nothing tears: popping an idle instance, and putting a job
into a `SimpleQueue`, each one call into C.

**What a destructor may do.** Python runs destructors, and the callbacks of weak references, in any thread, at any
moment: also while the thread is in the section of a scheduler, under its lock. Each thread notes the section that it is in
(`sections`), so every public function knows: what need not wait is put off, and a helper does it in a moment; what would
wait is refused (`refuse_inside`). `reentrant` states that rule for one function.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial, wraps
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._portable import is_abandoned
from headrace.errors import ClosedError, ContractError

if TYPE_CHECKING:
    Function = TypeVar("Function", bound=Callable[..., Any])

T = TypeVar("T")
_log = logging.getLogger("headrace.threads")


class _Main:
    ident = threading.main_thread().ident or 0


main_thread = _Main()
"""The main thread; of a child process, after a fork, its own."""

sections: dict[int, Any] = {main_thread.ident: main_thread}
"""Per thread the node in whose section it is. The main thread, which enters none, is here for ever, with itself: so one
look tells a caller that it is neither in a section nor the main thread."""


def in_section(me: int) -> bool:
    """Tell whether thread ``me``, the calling one, is in the section of a node."""
    node = sections.get(me)
    return node is not None and node is not main_thread and node.section.is_mine()


def took_token(items: list[None]) -> bool:
    """Take the one item of a list; False when another thread took it first."""
    try:
        items.pop()
    except IndexError:
        return False
    return True


def drained(pop: Callable[[], T]) -> Iterator[T]:
    """Return what ``pop()`` takes out of a list or deque, until it is empty; threads may share that out."""
    while True:
        try:
            item = pop()
        except IndexError:
            return
        yield item


def reset(table: dict[int, Any], ident: int, outer: Any) -> None:
    """Restore ``outer``, which a table held for thread ``ident`` before; None where the table held nothing."""
    if outer is None:
        table.pop(ident, None)
    else:
        table[ident] = outer


class Signal:
    """A binary semaphore on one raw lock. A late wake is harmless: the thread that it wakes looks again."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the thread that sleeps here; where none sleeps, the next sleep returns at once."""
        try:  # noqa: SIM105 - `suppress` costs more than the call
            self._lock.release()
        except RuntimeError:
            pass

    def sleep(self, timeout_s: float | None = None) -> bool:
        """Sleep until woken; False when ``timeout_s`` was over first."""
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class Watchers(list[Signal]):
    """The threads that sleep until a condition holds: each adds its signal first, and then looks at the condition."""

    __slots__ = ()

    def wait(self, is_so: Callable[[], bool], until: float | None = None) -> bool:
        """Sleep until ``is_so()``; False when ``until``, in seconds of `time.monotonic`, came first."""
        signal = Signal()
        self.append(signal)
        try:
            while not is_so():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                signal.sleep(left)
            return True
        finally:
            self.remove(signal)

    def wake(self) -> None:
        """Wake all threads, which then look again."""
        for signal in self.copy():
            signal.wake()


# Helper threads.


class Helpers:
    """Threads that run jobs: whoever takes a job first sees to it that another one waits, so no job waits for another."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self._idle: set[int] = set()
        self._starting = 0.0  # when the first helper was asked for, 0.0 once it is there
        self.put = self._jobs.put
        """Return a job ``(function, args)`` where a helper is known to be there: one call into C."""

    def run(self, function: Callable[..., object], *args: Any) -> None:
        """Let a helper call ``function(*args)``, which must not raise; RuntimeError where no thread can be started."""
        self._jobs.put((function, args))
        if not self._idle and time.monotonic() - self._starting > 1.0:
            self._starting = time.monotonic()
            try:
                start_thread("headrace-helper", self._serve)
            except RuntimeError:
                self._starting = 0.0
                raise

    @property
    def ready(self) -> bool:
        """Whether a helper is idle, or is being started."""
        return bool(self._idle or self._starting)

    def _serve(self) -> None:
        me, idle, jobs = get_ident(), self._idle, self._jobs
        while True:
            idle.add(me)
            self._starting = 0.0
            try:
                function, args = jobs.get(timeout=1.0)
            except Empty:
                if len(idle) > 1:
                    idle.discard(me)
                    if idle or jobs.empty():
                        return
                continue
            idle.discard(me)
            if not idle:
                try:
                    threading.Thread(
                        target=self._serve, name="headrace-helper", daemon=True
                    ).start()
                except RuntimeError:
                    _log.warning("no further helper thread could be started")
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001 - a job ends, its thread goes on
                _log.error("%r raised", function, exc_info=error)
            del function, args


def start_thread(name: str, function: Callable[[], None]) -> None:
    """Start a daemon thread without taking a lock of `threading` here, which the interrupted code may hold."""
    import _thread

    def begin() -> None:
        try:
            threading.Thread(target=function, name=name, daemon=True).start()
        except RuntimeError:  # no second thread: this one does it, without a name
            function()

    _thread.start_new_thread(begin, ())


helpers = Helpers()
"""The helpers of the process."""


# Calls that one thread makes for another, which waits.

calls_run: dict[int, Call] = {}
"""By the identifier of a thread, the call that it runs for another."""


def served_by(ident: int) -> set[int]:
    """Return thread ``ident`` and all threads that wait for the call that it runs, directly or through others."""
    found = {ident}
    call = calls_run.get(ident)
    while call is not None and call.caller not in found:
        found.add(call.caller)
        call = calls_run.get(call.caller)
    return found


def call_of_main(ident: int) -> Call | None:
    """Return the call that the main thread waits for, where thread ``ident`` serves it."""
    call = calls_run.get(ident)
    while call is not None and call.caller != main_thread.ident:
        call = calls_run.get(call.caller)
    return call


def withdrawn_by(withdraw: Callable[[], bool]) -> Call | None:
    """Say how to take back the requests for which the calling thread is about to wait; give its call, if any."""
    call = calls_run.get(get_ident())
    if call is not None:
        call.withdraw = withdraw
        if call.given_up:
            withdraw()
    return call


class Call:
    """A function that one thread runs while another one waits for it, and may give it up.

    Attributes:
        caller: Identifier of the thread that waits.
        given_up: Whether it waits no more: Ctrl-C has freed it.
        withdraw: Takes back the requests of the call; True if a backend still runs on one of them. None for none.
        interrupt: What the thread that waits raises once the call is over: a probe was interrupted. None for nothing.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.caller = get_ident()
        self.given_up = False
        self.withdraw: Callable[[], bool] | None = None
        self.interrupt: BaseException | None = None
        self._function, self._args = function, args
        self._unbegun: list[None] = [None]
        self._signal = Signal()
        self._over = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, unless the call was given up."""
        if not took_token(self._unbegun):
            return
        me = get_ident()
        outer = calls_run.get(me)
        calls_run[me] = self
        try:
            self._result = self._function(*self._args)
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self._error = error
        reset(calls_run, me, outer)
        self._function, self._args = _nothing, ()  # they may refer to this call: a cycle
        self._over = True
        self._signal.wake()

    def wait(
        self, begin: Callable[[Callable[[], None]], object], look_s: float | None = None
    ) -> Any:
        """Have another thread run it, and wait for the end; return the result or raise the error.

        An interrupt gives the call up, and is raised: also one that comes when the other thread has begun, and this one does not
        wait yet.

        Args:
            begin: Hands `run` to the other thread.
            look_s: See `OwnThread.run`.
        """
        try:
            begin(self.run)
            while not self._over:
                self._signal.sleep(look_s)
        except BaseException as interrupt:
            interrupt.abandoned = True  # type: ignore[attr-defined]
            interrupt.abandoned = self._give_up()  # type: ignore[attr-defined]
            raise
        error, self._error = self.interrupt or self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # no cycle from the error to this frame
        return self._result

    def _give_up(self) -> bool:
        """Return the call up; True when a backend goes on without the thread that waited."""
        self.given_up = True
        if took_token(self._unbegun):
            return False
        if self._over:
            return is_abandoned(self._error)
        return self.withdraw is None or run_on_helper(self.withdraw) is True


def _nothing() -> None:
    """Stand in for a function that was called."""


def run_on_helper(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Have a helper call a function, after all that was handed over, and wait for its end."""
    if sys.is_finalizing():
        raise ClosedError("the interpreter ends")
    call = Call(handed_over.first, (partial(function, **kwargs) if kwargs else function, *args))
    return call.wait(_by_helper)


def _by_helper(job: Callable[[], None]) -> None:
    """Have a helper do a job of the main thread; where no thread can be started, do it here."""
    try:
        helpers.run(job)
    except RuntimeError:
        job()


class HandOver:
    """Functions that the main thread has helpers call one after the other, and does not wait for."""

    def __init__(self) -> None:
        self._box: deque[tuple[Any, ...]] = deque()
        self._turn = threading.RLock()

    def give(self, function: Callable[..., Any], *args: Any) -> None:
        """Have a helper call a function, which must not raise."""
        self._box.append((function, *args))
        if len(self._box) == 1:  # else a thread that empties the box is there, or on its way
            _by_helper(self._run_all)

    def first(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function after all that was given before it."""
        if self._box:
            self._run_all()
        return function(*args)

    def _run_all(self) -> None:
        with self._turn:
            for function, *args in drained(self._box.popleft):
                function(*args)


handed_over = HandOver()


def reentrant(later: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Let a function that enters sections be called at any moment: a helper calls it for the main thread.

    Args:
        later: Called instead in a thread that is in a section. None: a helper calls the function in a moment.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            me = get_ident()
            if me not in sections:
                return function(*args, **kwargs)
            if me == main_thread.ident:
                return run_on_helper(function, *args, **kwargs)
            if not in_section(me):
                return function(*args, **kwargs)
            if later is not None:
                return later(*args, **kwargs)
            helpers.run(partial(function, *args, **kwargs))
            return None

        return called  # type: ignore[return-value]

    return decorate


def refuse_inside(node: str) -> None:
    """Refuse a call that would wait, in a thread that is in a section: of a destructor, or of a policy."""
    what = f"{_caller()} called a pipeline in the midst of its scheduler, and would have to wait"
    raise ContractError(what, node=node, hint="Use submit, which does not wait.")


def _caller() -> str:
    """Name the destructor that has called a pipeline; where there is none, the function that has."""
    found: list[str] = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        is_ours = frame.f_globals.get("__name__", "").startswith("headrace.")
        if not is_ours:
            name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
            found.append(f"{name} ({code.co_filename}:{frame.f_lineno})")
        if code.co_name == "__del__":
            return found[-1]
        if is_ours and found:  # the scheduler within which it was called
            break
        frame = frame.f_back  # type: ignore[assignment]
    return found[0] if found else "a destructor"


def after_fork() -> None:
    """Begin anew in a child process, in which no thread of the parent runs."""
    main_thread.ident = threading.main_thread().ident or 0
    sections.clear()
    sections[main_thread.ident] = main_thread
    calls_run.clear()
    helpers.__init__()  # type: ignore[misc]
    handed_over.__init__()  # type: ignore[misc]
