"""The box of a pipeline: all that changes its state are steps, which run one after the other.

Any thread may put a step into the box at any moment: that is one append. Then, if nobody runs steps, it takes the lock without
waiting and runs all that is in the box. Who finds the lock taken goes away: the thread that holds it runs the step. So a
step never waits for another one, no lock is taken while another one is held, and a destructor that calls the pipeline
in the midst of a step only leaves another step in the box.

Steps call nothing of the user's but policies. What a run of steps wants done outside (waking threads, telling callers) is in
`Box.after`, and done once the lock is left.

**The main thread runs no steps**: Ctrl-C is raised there between any two instructions. A thread of the pool runs the steps
that it puts into the box. `post`, `ask` and `Waiter.wait` are the only ways in, where this is known.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from math import inf
from sys import is_finalizing
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace._run import threads
from headrace._run.threads import OwnThread, Signal, Threads, check_stack
from headrace.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._run.node import Node

Answer = TypeVar("Answer")

_log = logging.getLogger("headrace.scheduling")

LATE_S = 1e-3
"""If the pool comes to telling callers later than this, the batch that was started first keeps the interpreter lock."""

NOT_YET: Any = object()
"""What `ask` gives where the step will run in a moment, and this thread cannot wait for it."""

main = threading.main_thread().ident or 0

in_steps: dict[int, object] = {main: None}
"""The threads that run steps now. The main thread is here for ever, so that one look tells both."""


class Box:
    """The steps of one pipeline.

    Attributes:
        threads: The clock, the timer and the pool of its threads.
        in_doubt: Whether the main thread was interrupted as it put a step in: perhaps nobody is on the way to the steps.
        runner: The thread that runs the steps, where it can run a batch afterwards. See `headrace._run.runners`.
        dirty: The nodes at which something has changed: whether a batch is due there is seen after the steps.
        after: What is called once the lock is left.
        telling: How often each thread is calling what its steps have collected, by its identifier.
        look_if_quiet: Called whenever the pipeline closes and something has ended. In a step.
        closes: Whether the pipeline closes, so that the end of what is called outside is something to look at.
        starts_first: Whether a long batch has ended in these steps: a thread that was given the next one leaves it to the pool to
            tell the callers, or wakes them when its device works.
        rested: What wakes the callers that wait for the batch that has ended.
        is_held_until: Until when batches are taken to keep the interpreter lock, since a thread came late to what it was to do.
    """

    def __init__(self, given: Threads | None = None) -> None:
        self.threads = given or threads.current
        self.in_doubt = False
        self.steps: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        self.runner: Any = None
        self.dirty: dict[Node, None] = {}
        self.after: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.rested: list[Signal] = []
        self.telling: dict[int, int] = {}
        self.look_if_quiet: Callable[[], object] = bool
        self.closes = self.starts_first = False
        self.is_held_until = -inf

    def after_fork(self) -> None:
        """Begin anew in a child process: a thread of the parent may have held the lock."""
        look = self.look_if_quiet
        self.__init__(self.threads)  # type: ignore[misc]
        self.look_if_quiet = look

    @property
    def is_told(self) -> bool:
        """Whether everybody has been told what the steps so far have decided; in a step."""
        return not self.after and not self.telling

    def later(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function once the lock is left; in a step."""
        self.after.append((function, args))

    def run(self, runner: Any = None) -> None:
        """Run the steps in the box, unless another thread does; never in the main thread, nor inside a step."""
        steps, dirty, lock = self.steps, self.dirty, self._lock
        me = get_ident()
        while steps and lock.acquire(False):
            in_steps[me] = self
            self.runner = runner
            try:
                while True:
                    if steps:
                        step, args = steps.popleft()
                        step(*args)
                    elif dirty:
                        dirty.popitem()[0].dispatch()
                    else:
                        break
            except BaseException as error:  # noqa: BLE001 - a defect; the other steps run all the same
                _log.error("a step raised", exc_info=error)
                steps.append((bool, ()))  # look again
            work = runner.work if self.starts_first and runner is not None else None
            after = self._take_after(work)
            starts = work is not None and self.is_held_until <= self.threads.clock()
            self.starts_first = False
            teller = -id(after) if starts else me  # no thread yet, or this one
            if after:
                self.telling[teller] = self.telling.get(teller, 0) + 1
            del in_steps[me]
            lock.release()
            if after and starts:
                begun = self.threads.clock()
                try:
                    self.threads.pool.run(self._call, after, teller, begun)
                except RuntimeError:  # no thread can be started
                    self._call(after, teller, begun)
            elif after:
                self._call(after, me)

    def _take_after(self, work: Any) -> list[tuple[Callable[..., object], tuple[Any, ...]]]:
        """Take what is to be called once the lock is left. Callers whom a thread will wake in its next batch are not in it."""
        rested, self.rested = self.rested, []
        if rested and (work is None or not work.puts_off(rested)):
            self.after += [(signal.wake, ()) for signal in rested]
        after, self.after = self.after, []
        return after

    def _call(
        self,
        functions: list[tuple[Callable[..., object], tuple[Any, ...]]],
        teller: int,
        begun: float = inf,
    ) -> None:
        me = get_ident()
        if me != teller:
            self.note_wait(begun)
            self.telling[me] = self.telling.get(me, 0) + 1
            del self.telling[teller]
        for function, args in functions:
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001 - the others are called all the same
                _log.error("%r raised", function, exc_info=error)
        self.telling[me] -= 1
        if not self.telling[me]:
            del self.telling[me]
        if self.closes:
            post(self, self.look_if_quiet)

    def note_wait(self, since: float) -> None:
        """Note when a thread was to go on that goes on now."""
        now = self.threads.clock()
        if now - since > LATE_S:
            self.is_held_until = now + 1.0

    def wake(self) -> None:
        """Have a thread of the pool run the steps; where none can, this thread runs them."""
        if not is_finalizing():  # else no other thread runs any more
            try:
                self.threads.pool.run(self.serve)
            except RuntimeError:  # no thread can be started
                pass
            else:
                return
        if is_inside():  # of another pipeline: whoever comes next runs them
            return
        in_steps.pop(main, None)
        try:
            self.run()
        finally:
            in_steps[main] = None

    def serve(self) -> None:
        """Run the steps in a thread of the pool, and then the batches that they give it."""
        worker = Worker()
        self.run(worker)
        while worker.work is not None:
            work, worker.work = worker.work, None
            work.run(worker)


class Worker:
    """A thread of the pool, as long as there is work for it at hand.

    Attributes:
        work: The batch that it is to run next.
    """

    __slots__ = ("ident", "thread", "work")

    def __init__(self, thread: OwnThread | None = None) -> None:
        self.ident, self.thread = get_ident(), thread
        self.work: Any = None

    def take(self, work: Any) -> bool:
        """Take a batch that this thread may run, while it runs the steps. False where it may not."""
        thread = self.thread
        same = self.work is None and work.instance.thread is thread
        if not same or (thread is not None and thread.is_wanted):
            return False
        self.work = work
        return True

    def rest(self, _: Box) -> None:
        """Do nothing: nobody waits for this thread."""


# The ways in.


def post(box: Box, step: Callable[..., object], *args: Any, runner: Any = None) -> None:
    """Have a step run: in this thread if nobody runs steps, else by who does. Any thread, at any moment.

    Raises:
        RecursionError: The thread has no stack left to run steps. Then nothing is in the box.
    """
    if runner is None:  # else who waits has looked
        check_stack()
    me = get_ident()
    if me in in_steps:
        doubt = box.in_doubt
        if me == main:
            # Left so by Ctrl-C in here: then the next call wakes a thread for both.
            box.in_doubt = True
        box.steps.append((step, args))
        # Else a thread that empties the box is there, or on its way.
        if doubt or len(box.steps) == 1:
            box.wake()
        if me == main:
            box.in_doubt = False
    else:
        box.steps.append((step, args))
        box.run(runner)


def ask(box: Box, step: Callable[..., Answer], *args: Any) -> Answer:
    """Have a step run and return what it returns; `NOT_YET` in a destructor within a step, which cannot wait."""
    answer: list[Any] = []
    signal = Signal()

    def run_asked() -> None:
        try:
            answer.append((step(*args), None))
        except BaseException as error:  # noqa: BLE001 - raised where it was asked
            answer.append((None, error))
        signal.wake()

    post(box, run_asked)
    if not answer:
        if is_inside():
            return cast("Answer", NOT_YET)
        while not answer:
            signal.sleep()
    result: Answer
    result, error = answer.pop()
    if error is not None:
        raise error
    return result


def is_inside() -> bool:
    """Tell whether this thread is in the midst of a step: of a destructor there, or of a policy."""
    me = get_ident()
    return me != main and me in in_steps


def refuse_inside(node: str) -> None:
    """Refuse a call that would wait, in the midst of a step."""
    me = get_ident()
    if me != main and me in in_steps:  # as `is_inside` says; each call that waits comes here
        what = "a destructor called a pipeline in the midst of one of its steps, and would have to wait"
        raise ContractError(what, node=node, hint="Use submit, which does not wait.")


def after_fork() -> None:
    """Begin anew in a child process."""
    global main
    main = threading.main_thread().ident or 0
    in_steps.clear()
    in_steps[main] = None
