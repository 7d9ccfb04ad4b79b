"""Threads that run batches one after the other, and sleep until there is another batch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace._portable import caused
from headrace._scheduling import batch as _batch
from headrace._scheduling.admission import interrupted
from headrace._scheduling.calls import errand
from headrace._scheduling.dispatch import Dispatcher
from headrace._scheduling.entry import DONE
from headrace._scheduling.process_threads import GIVES_UP_S, errands
from headrace._scheduling.threads import Work, Workers
from headrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node
    from headrace._scheduling.own_thread import OwnThread
    from headrace._scheduling.process_threads import Timer
    from headrace._scheduling.threads import Caller, Runner, Worker
    from headrace.policies import BatchPolicy, DispatchPolicy


class Driver(Dispatcher):
    """Runs batches in a thread until no batch is left for it.

    A method of this part is called without the lock, unless its docstring says that it is called under it.

    Args:
        node: The node.
        batch_policy, dispatch_policy: Decide when a batch is cut, and which instance takes it.
        timer: Looks at the queue at a time where no caller does.

    Attributes:
        run: Runs one batch: `batch.run`, or what `probing` has put in its place.
    """

    def __init__(
        self, node: Node, batch_policy: BatchPolicy, dispatch_policy: DispatchPolicy, timer: Timer
    ) -> None:
        self._node = node
        self._timer = timer
        self.run = _batch.run
        name, limit = f"headrace-{node.name}", len(node.instances)
        self.workers = Workers(
            name, limit, self._call_runner, lambda runner: errands.add((self._start, runner))
        )
        node.dispatch = self.dispatch
        self.use((batch_policy, dispatch_policy))

    def drive(self, me: Caller | Worker, work: Work | None) -> None:
        """Run ``work`` and the batches after it in thread ``me``; raises the interrupt that hit a caller."""
        node = self._node
        while work is not None:
            errors, interrupt = self._outcome(work)
            if interrupt is not None and all(entry.owner is not me for entry in work.entries):
                interrupt = None  # no entry is of `me`: the batch fails, and `me` goes on
            with node.section, node.lock:
                work = self.go_on(work, errors, None if interrupt is not None else me)
                del errors  # see `Entry.take_error`
            if interrupt is not None:
                raise interrupt

    def _outcome(self, work: Work) -> _batch.Outcome:
        """Run a batch and give its outcome, whatever is raised."""
        try:
            return self.run(work, self._node)
        except BaseException as error:  # noqa: BLE001 - past the guard in `run`: the stack or memory ends
            # No variable may keep the errors: see `Entry.take_error`.
            name, instance = self._node.name, work.instance
            return (
                [_batch.wrapped(name, instance, error) for _ in work.entries],
                None if isinstance(error, Exception) else error,
            )

    # Callers.

    def wait(
        self, caller: Caller, entries: Sequence[Entry], work: Work | None, *, parks: bool
    ) -> None:
        """Run ``work`` and what ``caller`` is given, sleep in between, until all entries of the caller are done.

        ``parks`` says whether the caller is noted as parked, since it has no batch to run.
        """
        node = self._node
        while parks or work is not None:
            if work is not None:
                self.drive(caller, work)
            else:
                times = [] if caller.runs else _deadlines(entries)
                if caller.wake_at is not None:
                    times.append(caller.wake_at)
                caller.signal.sleep(min(times) - node.clock() if times else None)
            if caller.done:
                return
            with node.section, node.lock:
                caller.parked = False
                if not caller.runs and self._fail_late(entries, node.clock()):
                    self.dispatch(None)
                work = self._take_up(caller)
                parks = caller.parked = work is None and caller.pending > 0

    def _take_up(self, caller: Caller) -> Work | None:
        """Give a caller that is awake the batch that it is to run next. Under the lock."""
        work, caller.work = caller.work, None
        if work is not None:
            work.instance.ident = caller.ident
            self.begin(work)
        elif caller.nudged:
            caller.nudged = False
            work = self.dispatch(caller)
        if work is not None or not caller.pending:
            # If this caller was to look at the queue at a time, `dispatch` has the timer do that instead.
            if self.resign(caller):
                self.dispatch(None)
        elif caller.wake_at is not None and self._node.clock() >= caller.wake_at:
            self.resign(caller)
            work = self.dispatch(caller)
        return work

    def leave(self, caller: Caller) -> None:
        """Take its batch, and its duty to look at the queue, from an interrupted caller. Under the lock."""
        caller.parked = False
        for instance in self._node.every:
            if instance.holder is caller and instance.entries is not None:
                work = Work(instance, instance.entries)
                if caller.work is not None:  # the batch was given, not begun: a runner runs it
                    self.workers.give(work)
                else:
                    self.fail(work, interrupted(self._node, running=False))
        caller.work = None
        self.resign(caller)

    # Runners and own threads.

    def _post(self, work: Work) -> bool:
        """Give a batch to the thread that owns its instance; False when that thread has ended."""
        thread = work.instance.thread
        return thread is not None and thread.post(
            partial(self._drive_owned, thread, work), partial(self._died, thread)
        )

    def _drive_owned(self, thread: OwnThread, work: Work) -> None:
        """Run a batch, and the batches after it, in the thread that owns the instance."""
        node, instance = self._node, work.instance
        if instance.entries is not work.entries or instance.ident:
            return  # the batch was posted twice: it has begun, or is over
        instance.ident = thread.ident
        instance.holder = thread
        if node.queue.count and not instance.full:
            with node.section, node.lock:
                self.begin(work)
        self.drive(thread, work)

    def _call_runner(self, runner: Runner) -> bool:
        return runner.post(partial(self._serve, runner), partial(self._died, runner))

    def _serve(self, runner: Runner) -> None:
        """Run the batches of the backlog in the thread of a runner, until the backlog is empty."""
        node = self._node
        while True:
            with node.section, node.lock:
                work = self.workers.next(runner, ends=node.refusing is not None)
                if work is not None:
                    self.begin(work)
            if work is None:
                return
            self.drive(runner, work)

    def _died(self, worker: Worker) -> None:
        """Fail the batch, begun or not, of a thread that has died; the instance that it owns is lost."""
        node = self._node
        with node.section, node.lock:
            self.workers.leave(worker)
            for instance in node.every:
                owned = instance.thread is worker
                if instance.entries is not None and (owned or instance.holder is worker):
                    what = "the thread that was to run the batch died"
                    error = BackendError(what, node=node.name, instance=instance.index)
                    work = Work(instance, instance.entries)
                    self.fail(work, caused(error, worker.cause))
                if owned:
                    node.lose(instance)
            if self.workers.backlog:  # another runner looks at it
                self.workers.call_one()
            self.dispatch(None)

    def _start(self, runner: Runner) -> None:
        """Start the thread of a runner, in a helper: what is raised in a thread that starts one may hit the new one.

        Another runner looks at the backlog where something has killed the new thread before it has begun.
        """
        node, failure = self._node, None
        try:
            runner.start()
            if runner.begun.sleep(GIVES_UP_S):
                return
        except RuntimeError as error:  # no more threads, or the interpreter ends
            what = f"no thread could be started to run the batch: {error}"
            failure = caused(BackendError(what, node=node.name), error)
        except BaseException:  # noqa: BLE001, S110 - another thread has raised it in this one
            pass
        with node.section, node.lock:
            if runner.ident:  # it has begun by now
                return
            self.workers.leave(runner)
            if self.workers.backlog and failure is not None:
                self.fail(self.workers.backlog.popleft(), failure)
            elif self.workers.backlog:
                self.workers.call_one()
            self.dispatch(None)

    def run_and_finish(self, work: Work) -> None:
        """Run a batch in the main thread, and have a helper thread settle it; raises the interrupt that hit it."""
        errors, interrupt = self._outcome(work)
        try:
            errand(self._finish, work, errors)
            if interrupt is not None:
                raise interrupt
        finally:
            del errors, interrupt  # see `Entry.take_error`

    def _finish(self, work: Work, errors: _batch.Errors) -> None:
        """Settle a batch, and give the batches that are due then to other threads."""
        node = self._node
        with node.section, node.lock:
            self.go_on(work, errors, None)
            del errors  # see `Entry.take_error`


def _deadlines(entries: Sequence[Entry]) -> list[float]:
    """Give the deadlines of the entries that are not done."""
    return [e.deadline for e in entries if e.deadline is not None and e.state != DONE]
