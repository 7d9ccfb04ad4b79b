"""The box of a pipeline: all that changes its state are steps, which run one after the other.

Any thread may put a step into the box at any moment: that is one append. Then, if nobody runs
steps, it takes the lock without waiting and runs all that is in the box. Who finds the lock taken
goes away: the thread that holds it runs the step. So a step never waits for another one, no lock is
taken while another one is held, and a destructor that calls the pipeline in the midst of a step
only leaves another step in the box. A worker alone waits for the lock: it needs the batch that its
own step gives it (`Box.work`).

Steps call nothing of the user's but policies. What a run of steps wants done outside (waking
threads, telling callers) is in `Box.locks` and `Box.after`, and done once the lock is left.

**The main thread runs no steps**: Ctrl-C is raised there between any two instructions. A thread of
the pool runs the steps that it puts into the box. `post`, `ask` and `Box.call_worker` are the only
ways in.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from sys import is_finalizing
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace._run.steps import threads
from headrace._run.steps.threads import OwnThread, Signal, Threads, check_stack
from headrace.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._run.batches.runners import Work
    from headrace._run.node import Node

Answer = TypeVar("Answer")

_log = logging.getLogger("headrace.scheduling")

NOT_YET: Any = object()
"""What `ask` gives where the step will run in a moment, and this thread cannot wait for it."""

main = threading.main_thread().ident or 0

in_steps: dict[int, object] = {main: None}
"""The threads that run steps now. The main thread is here for ever, so that one look tells both."""


class Box:
    """The steps of one pipeline.

    Attributes:
        threads: The clock, the timer and the pool of its threads.
        in_doubt: Whether the main thread was interrupted as it put a step in, so that perhaps no
            thread is about to run it.
        worker: The worker that runs the steps, and takes a batch that is due. None where another
            thread runs them.
        dirty: The nodes that have changed. After the steps each looks whether a batch is due.
        locks: What the callers sleep on that are woken once the lock is left.
        after: What is called once the lock is left.
        telling: How often each thread is calling what its steps have collected, by its identifier.
        look_if_quiet: Called whenever the pipeline closes and something has ended. In a step.
        closes: Whether the pipeline closes: then `look_if_quiet` runs after calls outside.
    """

    def __init__(self, threads_given: Threads | None = None) -> None:
        self.threads = threads_given or threads.current
        self.in_doubt = False
        self.steps: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        self.worker: Worker | None = None
        self.dirty: dict[Node, None] = {}
        self.locks: list[Any] = []
        self.after: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.telling: dict[int, int] = {}
        self.look_if_quiet: Callable[[], object] = bool
        self.closes = False

    def after_fork(self) -> None:
        """Begin anew in a child process: a thread of the parent may have held the lock."""
        look = self.look_if_quiet
        self.__init__(self.threads)  # type: ignore[misc]
        self.look_if_quiet = look

    @property
    def is_told(self) -> bool:
        """Whether everybody has been told what the steps so far have decided; in a step."""
        return not self.after and not self.locks and not self.telling

    def later(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function once the lock is left; in a step."""
        self.after.append((function, args))

    def run(self) -> None:
        """Run the steps in the box, unless another thread does.

        It is called neither in the main thread nor inside a step.
        """
        while self.steps and self._lock.acquire(False):
            self._run(None, None, ())

    def work(self, worker: Worker, step: Callable[..., object] | None = None, *args: Any) -> None:
        """Wait for the lock, and run the steps in the box, then the step of a worker.

        The worker takes a batch that is due.
        """
        self._lock.acquire()
        self._run(worker, step, args)
        if self.steps:  # they came as this thread left the lock
            self.run()

    def _run(
        self, worker: Worker | None, step: Callable[..., object] | None, args: tuple[Any, ...]
    ) -> None:
        steps, dirty, me = self.steps, self.dirty, get_ident()
        in_steps[me] = self
        self.worker = worker
        while True:
            try:
                if steps:
                    function, args_of_step = steps.popleft()
                    function(*args_of_step)
                elif step is not None:
                    function, step = step, None
                    function(*args)
                elif dirty:
                    dirty.popitem()[0].dispatch()
                else:
                    break
            except BaseException as error:  # a defect: the other steps run
                _log.error("a step raised", exc_info=error)
        self.worker = None
        work = None if worker is None else worker.work
        if self.locks and work is not None and work.puts_off(self.locks):
            self.locks = []
        locks, after = self.locks, self.after
        if not locks and not after:
            del in_steps[me]
            self._lock.release()
            return
        self.locks, self.after = [], []
        self.telling[me] = self.telling.get(me, 0) + 1
        del in_steps[me]
        self._lock.release()
        if after and self.steps:  # they came meanwhile, and what is called now may take long
            self.wake()
        self._tell(locks, after)

    def _tell(
        self, locks: list[Any], after: list[tuple[Callable[..., object], tuple[Any, ...]]]
    ) -> None:
        """Wake callers, and call what the steps wanted called; in no step."""
        for lock in locks:
            try:  # as `wake`, without the call
                lock.release()
            except RuntimeError:
                pass
        for function, args in after:
            try:
                function(*args)
            except BaseException as error:  # the others are called all the same
                _log.error("%r raised", function, exc_info=error)
        me = get_ident()
        self.telling[me] -= 1
        if not self.telling[me]:
            del self.telling[me]
        if self.closes:
            post(self, self.look_if_quiet)

    def call_worker(self, step: Callable[[], object], thread: OwnThread | None) -> None:
        """Have a worker run a step and the batches due, in the thread of a backend or the pool."""
        if thread is not None and thread.alive:
            thread.post(partial(self.serve, step, thread))
            if thread.alive:  # else it has perhaps ended before; to look twice is no harm
                return
        try:
            self.threads.pool.run(self.serve, step)
        except RuntimeError:  # no thread can be started
            post(self, step)

    def wake(self) -> None:
        """Have a worker run the steps; where there can be none, this thread runs them."""
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

    def serve(
        self, step: Callable[[], object] | None = None, thread: OwnThread | None = None
    ) -> None:
        """Run the steps in a thread of the pool or of a backend, and then the batches due."""
        worker = Worker(thread)
        self.work(worker, step)
        worker.run()


class Worker:
    """A thread of the pool, or the one of a backend, as long as there is work for it at hand.

    Attributes:
        thread: The thread of a backend. None where it belongs to the pool.
        work: The batch that it is to run next.
        returns: Called where there is no work. It waits a moment for callers just answered, who
            often come again.
    """

    __slots__ = ("returns", "thread", "work")

    def __init__(self, thread: OwnThread | None, work: Work | None = None) -> None:
        self.thread, self.work = thread, work
        self.returns: Callable[[Worker], object] | None = None

    def take(self, work: Work) -> bool:
        """Take a batch, while this thread runs the steps. False where the thread may not run it."""
        thread = self.thread
        if self.work is not None or self.returns is not None or work.instance.thread is not thread:
            return False
        if thread is not None and thread.is_wanted:
            return False
        self.work = work
        return True

    def run(self) -> None:
        """Run batches as long as there are any."""
        while True:
            work, self.work = self.work, None
            if work is not None:
                work.run(self)
            elif self.returns is not None:
                wait, self.returns = self.returns, None
                wait(self)
            else:
                return


# The ways in.


def post(box: Box, step: Callable[..., object], *args: Any) -> None:
    """Have a step run, in this thread or in the one that runs steps now. Call it at any moment.

    Raises:
        RecursionError: The thread has no stack left to run steps. Then nothing is in the box.
    """
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
        box.run()


def ask(box: Box, step: Callable[..., Answer], *args: Any) -> Answer:
    """Have a step run and return its value.

    A destructor within a step cannot wait, and gets `NOT_YET`.
    """
    answer: list[Any] = []
    signal = Signal()

    def run_asked() -> None:
        try:
            answer.append((step(*args), None))
        except BaseException as error:  # raised where it was asked
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


def outside(box: Box, function: Callable[..., object], *args: Any) -> None:
    """Call a function in no step of a box: now, or once the lock is left."""
    if in_steps.get(get_ident()) is box:
        box.later(function, *args)
    else:
        function(*args)


def is_inside() -> bool:
    """Tell whether this thread is in the midst of a step: of a destructor there, or of a policy."""
    me = get_ident()
    return me != main and me in in_steps


def refuse_inside(node: str) -> None:
    """Refuse a call that would wait, in the midst of a step."""
    me = get_ident()
    if me != main and me in in_steps:  # as `is_inside` says; each call that waits comes here
        message = "a destructor called a pipeline in the midst of a step, and would have to wait"
        raise ContractError(message, node=node, hint="Use submit, which does not wait.")


def after_fork() -> None:
    """Begin anew in a child process."""
    global main
    main = threading.main_thread().ident or 0
    in_steps.clear()
    in_steps[main] = None
