"""The runners of a node: started at the first need, parked in between, one per instance at most."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from headrace._scheduling.executors import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._scheduling.driving import Driver
    from headrace._scheduling.executors import Work

__all__ = ["Crew"]


class Crew:
    """Hands work to runner threads. All but `__init__` is called under the lock of the node.

    Args:
        name: The node.
        limit: See below.
        driver: What the threads run.
        starts: Takes what starts a thread, to be called once the lock is left.

    Attributes:
        parked: The runners that sleep.
        limit: How many runners there may be: one per instance.
        backlog: Work for the next runner that has nothing to do. It is only used while as many
            runners live as there are instances; one of them then runs no batch and is about to
            look here.
    """

    def __init__(
        self, name: str, limit: int, driver: Driver, starts: deque[Callable[[], None]]
    ) -> None:
        self.parked: list[Runner] = []
        self.backlog: deque[Work] = deque()
        self._name = name
        self.limit = limit
        self._driver = driver
        self._starts = starts
        self._alive = 0

    def give(self, work: Work) -> None:
        """Let a runner run ``work``."""
        if self.parked:
            runner = self.parked.pop()
            runner.work = work
            work.instance.holder = runner
            runner.signal.wake()
        elif self._alive >= self.limit:
            work.instance.holder = self.backlog
            self.backlog.append(work)
        else:
            runner = Runner()
            runner.work = work
            work.instance.holder = runner
            self._alive += 1
            self._starts.append(lambda: self._start(runner))

    def _start(self, runner: Runner) -> None:
        """Start the thread of a runner. Without the lock."""
        thread = threading.Thread(
            target=self._driver.serve, args=(runner,), name=f"headrace-{self._name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._driver.not_started(runner, error)

    def take_up(self, runner: Runner) -> Work | None:
        """Give a runner that has nothing to do what waits for it."""
        self.unpark(runner)  # it is still noted when a stale signal woke it
        work = runner.work
        runner.work = None
        if work is None and self.backlog:
            work = self.backlog.popleft()
            work.instance.holder = runner
        if work is not None:
            work.instance.ident = runner.ident
        return work

    def park(self, runner: Runner) -> None:
        """Take note that a runner goes to sleep."""
        self.parked.append(runner)

    def unpark(self, runner: Runner) -> None:
        """Take note that a runner is awake."""
        if runner in self.parked:
            self.parked.remove(runner)

    def leave(self, runner: Runner) -> None:
        """Take note that a runner ends."""
        runner.stopped = True
        self._alive -= 1

    @property
    def surplus(self) -> bool:
        """Whether there are more runners than instances."""
        return self._alive > self.limit

    def trim(self, limit: int) -> None:
        """Change the limit; runners above it end, those that sleep at once."""
        self.limit = limit
        while self.surplus and self.parked:
            self._end_one()

    def stop(self) -> None:
        """End the runners that sleep; the others end with their batch."""
        while self.parked:
            self._end_one()

    def _end_one(self) -> None:
        runner = self.parked.pop()
        self.leave(runner)
        runner.signal.wake()
