"""The threads at work: running batches one after the other, and sleeping until there is one."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace._scheduling import batch as _batch
from headrace._scheduling.admission import deadline_error, interrupted
from headrace._scheduling.entry import DONE, RUNNING
from headrace._scheduling.errands import errands
from headrace._scheduling.executors import Runner, Work
from headrace._scheduling.reentrant import errand
from headrace.errors import BackendError, code_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.crew import Crew
    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.executors import Caller
    from headrace._scheduling.node import Node

__all__ = ["Driver", "earliest"]


class Driver:
    """What a thread does between taking work up and going to sleep. Called without the lock."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._dispatcher: Dispatcher
        self._crew: Crew

    def attach(self, dispatcher: Dispatcher, crew: Crew) -> None:
        """Say who cuts batches and who hands them to runners."""
        self._dispatcher = dispatcher
        self._crew = crew

    def drive(self, me: Caller | Runner, work: Work | None) -> None:
        """Run ``work`` and what follows for ``me``; raises the interrupt that hit this thread."""
        node = self._node
        while work is not None:
            errors, interrupt = self._safely(work)
            stops = interrupt is not None and any(entry.owner is me for entry in work.entries)
            with node.lock:
                self._dispatcher.release(work, errors)
                del errors  # see `Entry.take_error`
                retire, instance = node.retire, work.instance
                work = self._dispatcher.dispatch(None if stops else me)
                settled = node.take_settled()
            node.tell(settled)
            if retire is not None:
                retire(instance)
            if stops and interrupt is not None:
                raise interrupt

    def _safely(self, work: Work) -> _batch.Outcome:
        """Run a batch, and let none of its outcomes be lost, whatever is raised."""
        node = self._node
        try:
            errors, interrupt = self._run(work)
        except BaseException as error:  # noqa: BLE001 - past all guards: the stack or memory ends
            interrupt = None if isinstance(error, Exception) else error
            errors = [_batch.wrapped(node.name, work.instance, error) for _ in work.entries]
        if any(errors):
            _note_codes(work.entries, errors)
        try:
            return errors, interrupt
        finally:
            del errors, interrupt  # see `Entry.take_error`

    def _run(self, work: Work) -> _batch.Outcome:
        node, limits = self._node, work.instance.limits
        return _batch.run(
            node.name,
            work,
            limits.batch_sizes,
            pad=limits.pad,
            needs_result=node.needs_result,
        )

    # Callers.

    def wait(
        self,
        caller: Caller,
        entries: Sequence[Entry],
        work: Work | None,
        *,
        parks: bool,
        deadline: float | None,
    ) -> None:
        """Run what is given to ``caller``, sleep in between, until all its entries are done.

        Args:
            caller: The calling thread.
            entries: What it waits for.
            work: What it is to run first.
            parks: Whether it has been noted as parked, for want of work.
            deadline: The earliest of its entries.
        """
        node = self._node
        while parks or work is not None:
            if work is not None:
                self.drive(caller, work)
            elif deadline is None and caller.wake_at is None:
                caller.signal.sleep()
            else:
                caller.signal.sleep(_until(node.clock(), deadline, caller.wake_at))
            if caller.done:
                return
            with node.lock:
                caller.parked = False
                if deadline is not None and caller.work is None and node.clock() >= deadline:
                    self._expire(entries)
                    deadline = earliest(entries)
                work = self._take_up(caller)
                parks = caller.parked = work is None and caller.pending > 0
                settled = node.take_settled()
            node.tell(settled)

    def _take_up(self, caller: Caller) -> Work | None:
        """Give an awake caller what it is to run. Under the lock."""
        work, caller.work = caller.work, None
        if work is not None:
            work.instance.ident = caller.ident
            self._dispatcher.begin(work)
        elif caller.nudged:
            caller.nudged = False
            work = self._dispatcher.dispatch(caller)
        if work is not None or not caller.pending:
            self._hand_duty_on(caller)
        elif caller.wake_at is not None and self._node.clock() >= caller.wake_at:
            self._dispatcher.resign(caller)
            work = self._dispatcher.dispatch(caller)
        return work

    def _hand_duty_on(self, caller: Caller) -> None:
        """Let the timer look at the line when this caller, who was to, does something else."""
        if self._dispatcher.resign(caller):
            self._dispatcher.dispatch(None)

    def _expire(self, entries: Sequence[Entry]) -> None:
        now = self._node.clock()
        for entry in entries:
            if entry.deadline is not None and entry.deadline <= now:
                self.expire(entry)

    def expire(self, entry: Entry) -> None:
        """Fail an entry whose time is over, if it has no outcome. Under the lock."""
        if entry.state == DONE:
            return
        node = self._node
        running = entry.state == RUNNING
        node.settle(entry, deadline_error(node, running=running))
        node.take_out(entry)
        node.let_in()
        self._dispatcher.dispatch(None)

    # Runners and own threads.

    def leave(self, caller: Caller) -> None:
        """Take from a caller, whose thread goes away, all that it has to do for others. Under the lock."""
        caller.parked = False
        for instance in self._node.every:
            if instance.holder is caller and instance.entries is not None:
                work = Work(instance, instance.entries)
                if caller.work is not None:  # it was given and not begun: somebody else runs it
                    self._dispatcher.give_runner(work)
                else:
                    self._dispatcher.fail(work, interrupted(self._node, running=False))
        caller.work = None
        self._dispatcher.resign(caller)

    def serve(self, runner: Runner) -> None:
        """Run batches until the node is closed: the life of a runner's thread."""
        runner.ident = get_ident()
        try:
            goes_on = True
            while goes_on:
                try:
                    goes_on = self._serve_once(runner)
                except BaseException as error:  # noqa: BLE001 - a runner goes on, whatever hits it
                    self._give_back_all(runner, error)
        except BaseException as error:  # noqa: BLE001 - the thread ends; another takes its place
            errands.run(self._died, runner, error)

    def _serve_once(self, runner: Runner) -> bool:
        """Run what there is to run, or sleep; tell whether to go on."""
        node = self._node
        with node.lock:
            if runner.stopped:
                return False
            work = self._crew.take_up(runner)
            if work is not None:
                self._dispatcher.begin(work)
            else:
                work = self._dispatcher.dispatch(runner)
            ends = work is None and (node.refusing is not None or self._crew.surplus)
            if ends:
                self._crew.leave(runner)
            elif work is None:
                self._crew.park(runner)
            settled = node.take_settled()
        node.tell(settled)
        if work is not None:
            self.drive(runner, work)
        elif not ends:
            runner.signal.sleep()
        return not ends

    def _died(self, runner: Runner, error: BaseException) -> None:
        """Let another take the place of a runner whose thread was killed."""
        with self._node.lock:
            if not runner.stopped:
                self._crew.leave(runner)
        self._give_back_all(runner, error)

    def _give_back_all(self, runner: Runner, error: BaseException) -> None:
        """Give back what a runner holds after something was raised past its batch."""
        node = self._node
        with node.lock:
            self._crew.unpark(runner)
            for instance in node.every:
                entries = instance.entries
                if instance.holder is runner and entries is not None:
                    if runner.work is None:
                        failure = _batch.wrapped(node.name, instance, error)
                        self._dispatcher.fail(Work(instance, entries), failure)
                    elif runner.stopped:
                        self._dispatcher.give_runner(Work(instance, entries))
            if runner.stopped:
                runner.work = None
                if self._crew.backlog:
                    self._dispatcher.give_runner(self._crew.backlog.popleft())
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)

    def not_started(self, runner: Runner, error: RuntimeError) -> None:
        """Fail what a runner was to run whose thread cannot be started."""
        node = self._node
        with node.lock:
            self._crew.leave(runner)
            work, runner.work = runner.work, None
            if work is not None:
                failure = BackendError(
                    f"no thread could be started to run the batch: {error}", node=node.name
                )
                failure.__cause__ = error
                self._dispatcher.fail(work, failure)
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)

    def drive_owned(self, work: Work) -> None:
        """Run one batch in the thread that owns its instance."""
        node = self._node
        instance = work.instance
        if instance.entries is not work.entries or instance.ident:
            return  # it was posted twice
        instance.ident = get_ident()
        instance.holder = instance.thread
        if node.line.count:
            with node.lock:
                self._dispatcher.top_up(work)
                settled = node.take_settled()
            node.tell(settled)
        errors, _ = self._safely(work)
        try:
            self._finish(work, errors)
        finally:
            del errors  # see `Entry.take_error`

    def run_and_finish(self, work: Work) -> None:
        """Run a batch of the main thread, which takes no lock; raises the interrupt that hit it."""
        errors, interrupt = self._safely(work)
        try:
            errand(self._finish, work, errors)
            if interrupt is not None:
                raise interrupt
        finally:
            del errors, interrupt  # see `Entry.take_error`

    def _finish(self, work: Work, errors: Sequence[BaseException | None]) -> None:
        """Settle a batch, and leave what waits to others."""
        node = self._node
        with node.lock:
            self._dispatcher.release(work, errors)
            del errors  # see `Entry.take_error`
            retire = node.retire
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)
        if retire is not None:
            retire(work.instance)

    def lost(self, work: Work) -> None:
        """Fail a batch whose thread has died."""
        node = self._node
        with node.lock:
            if work.instance.entries is work.entries:
                error = BackendError(
                    "the thread that owns the instance died",
                    node=node.name,
                    instance=work.instance.index,
                )
                error.__cause__ = getattr(work.instance.thread, "cause", None)
                self._dispatcher.fail(work, error)
            node.lose(work.instance)
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)


def _note_codes(entries: Sequence[Entry], errors: Sequence[BaseException | None]) -> None:
    """Find out, before the lock is taken, as what each failure is counted."""
    for entry, error in zip(entries, errors, strict=True):
        if error is not None:
            entry.code = code_of(error)


def earliest(entries: Sequence[Entry]) -> float | None:
    """Give the earliest deadline of the entries that are not done."""
    deadlines = (e.deadline for e in entries if e.deadline is not None and e.state != DONE)
    return min(deadlines, default=None)


def _until(now: float, *times: float | None) -> float | None:
    """Give the seconds from ``now`` to the earliest of ``times``, None when there is none."""
    return min((at - now for at in times if at is not None), default=None)
