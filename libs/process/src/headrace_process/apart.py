"""A container with its part elsewhere, in any kind of place: batches, items run once more, and processes borrowed for it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace import Backend
from headrace.errors import ContractError, InstanceLostError
from headrace.isolation import Liveness, batch_alone, has_emitted
from headrace_process.exchange import Exchange, caller_left
from headrace_process.parts import Part, elements_of
from headrace_process.running import RunningBatch
from headrace_process.supervisor import Child, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.isolation import ChildConfig
    from headrace.keys import Request
    from headrace_process.exchange import Outcomes
    from headrace_process.places import Place, Restarts

T = TypeVar("T")

_CUT_S = 10.0
"""A part whose link is broken ends by itself within this time (seconds), or is killed."""


class Apart(Backend):
    """Let X live elsewhere. A subclass says where: it has `place` and `restarts`, and options.

    Attributes:
        liveness: Whether the instance to which this container belongs can serve. ``init`` sets it, and `needs`.
        needs: The keys without which X cannot run a request.
        cpus: The processors that what is started may use. None for all.
        same_clock: Whether ``time.monotonic()`` is the same there: only then runs of backends in X can be reported.
        kill_after_s: How long after the last deadline of a batch what runs it is killed (seconds). None for never.
        retries: How many times an item runs once more when what ran it has died, where X says ``rerun``.
    """

    takes = 1
    builds_elsewhere = True
    reads: tuple[str, ...] = ()  # beside those that X reads
    needs: tuple[str, ...]
    liveness: Liveness
    cpus: str | int | None = None
    same_clock: bool = True
    kill_after_s: float | None = None
    retries: int = 1

    @property
    def unplaced(self) -> InstanceLostError | None:
        """The error of an item that does not wait: the next start is far away, or has no room now. None where it waits."""
        if not self.supervisor.pausing:
            return None
        hint = "Send no more of the requests that end it. Others may succeed within half a minute."
        return InstanceLostError("its process dies again and again", hint=hint)

    def sent(self, inside: ChildConfig) -> Part:
        """Return what is sent to be built."""
        return Part(inside, self._here[0])

    def place_of(self, index: int) -> Place:
        """Return the place of the next start, for an instance of the node; any thread may call it."""
        raise NotImplementedError

    def restarts(self) -> Restarts:
        """Return after which pauses what has ended is started again, for one instance."""
        raise NotImplementedError

    def init(self, options: Any, context: InitContext) -> None:
        """Start the process, build X there, and take over its range.

        Raises:
            SetupError: X could not be built, or the process ended.
        """
        inside: Any = context.children[0]
        self.liveness = inside.liveness
        self._here = context.node_name, context.instance_index
        self.exchanging = threading.Lock()
        self._borrower: int | None = None
        self._siblings: Siblings = self.siblings(context, Siblings)
        first = {"levels": _levels(), "cpus": self.cpus}
        part = cache(lambda: self.sent(inside))
        reports = context.store.pipeline.get_or_create(("processes", context.node_name), Ends)
        ends: list[Restarts] = reports.restarts
        answers = {
            element.cls.__name__: element.cls.answerer(element.options, context)
            for element in elements_of(inside)
            if hasattr(element.cls, "answerer")
        }

        def supervise(index: int) -> Supervisor:
            name = f"headrace-{context.node_name}-{index}-process"
            message = {**first, "part": part(), "seen": inside.seen(index)}
            start_at, notify = partial(self.place_of, index), self._siblings.note
            restarts = self.restarts()
            ends.append(restarts)
            return Supervisor(name, start_at, message, restarts, Liveness(), notify, answers)

        self.supervisor = self._siblings.supervisor(
            context.instance_index, inside.instances, supervise
        )
        self.supervisor.liveness = self.liveness
        self._child = self.supervisor.start(context.cancelled)
        self.liveness.killers.append(self.supervisor.kill)
        self._take(self._child.about, inside)
        self._siblings.members.append(self)

    def siblings(self, context: InitContext, make: Callable[[], T]) -> T:
        """Return what the instances of this container share, made by the first with ``make()``."""
        inside: Any = context.children[0]
        return context.store.node.get_or_create(("apart", inside.origin), make)

    def _take(self, about: dict[str, Any], inside: ChildConfig) -> None:
        """Take over what the process has reported of X."""
        self.min, self.max, self.rerun = about["min"], about["max"], about["rerun"]  # type: ignore[misc]
        self.needs, self.reads = about["needs"], about["reads"]
        self._exchange = Exchange(
            {*about["keys"]}, {*about["reads"]}, self.kill_after_s, inside, self.same_clock
        )

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run X on the batch in its process. If the process dies, each item once more if X says ``rerun``.

        Raises:
            InstanceLostError: The process has died.
            ContractError: A signal handler called the pipeline in a thread that waits for this process.
        """
        if self._borrower is not None and self._borrower == threading.get_ident():
            problem = "a signal handler called the pipeline in a thread that waits for this process"
            hint = "Let the handler use Pipeline.submit, or a thread of its own."
            raise ContractError(problem, hint=hint)
        outermost = self.liveness.outermost is self
        running = RunningBatch(self.liveness.entries(), may_leave=outermost)
        if self.min == 1:
            # `run` may wait until the process is started again. A caller whose deadline passes meanwhile may
            # leave: its request is left out of the batch. No batch is too small for X here.
            running.lend()
        self.exchanging.acquire()
        try:
            try:
                return self.run(batch, running)
            finally:
                self.exchanging.release()
        except InstanceLostError as error:
            # In a larger expression it is not known which callers have left, only when all have.
            over = not running.may_leave and running.is_over()
            if over or not (self.rerun and self.retries):
                raise
            running.lend()
            died = error.with_traceback(None)
        finally:
            if self._siblings.waiting:
                self._siblings.look()
        each = [batch_alone(self, request) for request in batch]
        return [
            died if alone is None or has_emitted(request) else self._once_more(alone, running)
            for request, alone in zip(batch, each, strict=True)
        ]

    def _once_more(self, alone: list[Request], running: RunningBatch) -> Exception | None:
        """Run one item alone in a process that lives, at most ``retries`` times; return its outcome."""
        outcome: Exception | None = None
        for left in reversed(range(self.retries)):
            if running.has_left(alone[0]):
                return caller_left()
            try:
                other = self._siblings.borrow(self)
            except InstanceLostError as error:
                return self.located(error)
            outcome, died = self._lent(other, alone, running)
            if not died or not left or has_emitted(alone[0]):
                break
        return outcome

    def _lent(
        self, other: Apart, alone: list[Request], running: RunningBatch
    ) -> tuple[Exception | None, bool]:
        """Run one item in the process of a borrowed instance; return its outcome, and whether that process has died."""
        killers, kill = self.liveness.killers, other.supervisor.kill
        killers.append(kill)
        other._borrower = threading.get_ident()
        try:
            outcomes = other.run(alone, running)
            outcome = None if outcomes is None else outcomes[0]
            running.lend(alone[:1])  # its caller may leave while a later item waits for a process
        except InstanceLostError as error:
            running.lend(alone[:1])
            return error, True
        finally:
            killers.remove(kill)
            other._borrower = None
            other.exchanging.release()
            self._siblings.look()
        if isinstance(outcome, InstanceLostError) and other is not self:
            if outcome.node is None:  # else it ends its batch alone
                other.liveness.lost = True
            self.located(outcome)
        return outcome, False

    def located(self, error: InstanceLostError) -> InstanceLostError:
        """Write node and instance into an error that ends its batch, and not the instance. Return the error.

        An error without a node, raised by `forward` or among its outcomes, says that the instance itself is lost.
        """
        error.node, error.instance = self._here
        return error

    def describe(self) -> dict[str, Any]:
        """Return the process id, and as the child the tree of what was built in the process."""
        about = (self.supervisor.current or self._child).about
        return {"process": about["process"], "children": [about["tree"]]}

    def close(self) -> None:
        """Close X and end the process, which is killed when it does not end in time."""
        with self.exchanging:  # an item of another instance may run in the process
            self.supervisor.close()
        self._leave()

    def _leave(self) -> None:
        """Let items of other instances borrow this process no more."""
        with suppress(ValueError):
            self._siblings.members.remove(self)
        self._siblings.look()

    # One batch. The thread that calls `run` holds `exchanging`.

    def run(self, batch: list[Request], running: RunningBatch) -> Outcomes:
        """Run a batch in the process.

        Raises:
            InstanceLostError: The process has died.
        """
        child = self._child
        if child is not self.supervisor.current or child.link.awaits:
            child = self._living()
        try:
            return self._exchange.receive(self._exchange.send(child, batch, running))
        except EOFError:
            raise self._death(child) from None
        except TimeoutError:
            child.kill()
            raise self._death(child, hung=True) from None
        except BaseException:
            if child.link.awaits:  # after Ctrl-C no thread will read the answer
                child.kill()
            raise

    def _living(self) -> Child:
        """Return the process that lives, once there is one.

        Raises:
            InstanceLostError: None is started now.
        """
        if self._siblings.all_pause and (refused := self.unplaced):
            raise self.located(refused)
        try:
            child = self.supervisor.child()
            if child.link.awaits:  # a second interrupt came before `run` could kill the process
                child.kill()
                child.ended.wait()
                child = self.supervisor.child()
        except InstanceLostError as error:
            # The supervisor decides whether the instance is lost. Without a node in the error `Checked`
            # would mark the instance as lost as well.
            self.located(error)
            raise
        self._child = child
        return child

    def _death(self, child: Child, hung: bool = False) -> InstanceLostError:
        """Wait until the supervisor has noted the death of the process; make the error of its batch."""
        if not child.ended.wait(_CUT_S):
            child.kill()  # its link is broken, and it lives
            child.ended.wait()
        how, hint = child.how
        if hung:
            how += ", killed for running on after the deadlines"
            hint = "X is slower than the deadlines, or hangs."
        return self.located(InstanceLostError(f"its process has died {how}", hint=hint))


class Ends:
    """How often the processes of a node have ended: ``stats()["processes"][NODE]`` of the pipeline."""

    def __init__(self) -> None:
        self.restarts: list[Restarts] = []

    def statistics(self) -> dict[str, Any]:
        """Return how often they have ended, and whether one has too often within the last minute."""
        now, all_of_them = time.monotonic(), [*self.restarts]
        return {
            "ended": sum(ends.count for ends in all_of_them),
            "failing": any(ends.too_often(now) for ends in all_of_them),
        }


class Siblings:
    """The instances of one ``Apart`` of a node: each may run an item of another one a second time.

    Attributes:
        members: The instances.
        waiting: How many threads wait in `borrow`.
    """

    def __init__(self) -> None:
        self.members: list[Apart] = []
        self.waiting = 0
        self._early: dict[int, Supervisor] | None = None
        self._changed = threading.Condition()

    def supervisor(self, index: int, alike: int, make: Callable[[int], Supervisor]) -> Supervisor:
        """Return the supervisor of one instance, made by ``make(index)``.

        The first call makes the supervisors of all ``alike`` instances and begins their processes, so that they start
        at the same time. `close` closes the supervisors that no instance asks for.
        """
        if self._early is None:
            self._early = {}
            for number in range(alike):
                self._early[number] = make(number)
                self._early[number].begin()
        return self._early.pop(index, None) or make(index)

    def close(self) -> None:
        """End the processes that were started for instances that have not been built."""
        for supervisor in (self._early or {}).values():
            supervisor.kill()
            supervisor.close()

    def look(self) -> None:
        """Wake the threads in `borrow`: a process has become idle, has come back, or will not come back."""
        with self._changed:
            self._changed.notify_all()

    @property
    def all_pause(self) -> bool:
        """Whether no process lives, and none will soon."""
        members = [*self.members]
        return bool(members) and all(member.supervisor.pausing for member in members)

    def note(self) -> None:
        """Let instances without a process get batches, to refuse them, where no process will live soon."""
        for member in [*self.members]:
            supervisor = member.supervisor
            if not (supervisor.lives or supervisor.over):
                member.liveness.away(supervisor, takes_batches=self.all_pause)
                if supervisor.lives:  # by now
                    member.liveness.back(supervisor)
        self.look()

    def borrow(self, own: Apart) -> Apart:
        """Wait for an idle living process and return its instance, preferably another than ``own``.

        The lock ``exchanging`` of that instance is acquired. Release it, and then call `look`. When no process lives
        and none is started any more, the result is ``own``.

        Raises:
            InstanceLostError: None can be started now.
        """
        with self._changed:
            # This thread raises `waiting` first and tries the locks then. The thread that leaves a process
            # releases its lock first and reads `waiting` then. So either this thread finds the lock free,
            # or the other thread sees the count and notifies: no wake-up is lost.
            self.waiting += 1
            try:
                while True:
                    others = [member for member in [*self.members] if member is not own]
                    for member in (*others, own):
                        if member.supervisor.lives and member.exchanging.acquire(blocking=False):
                            return member
                    living = (member for member in (own, *others) if not member.supervisor.over)
                    refused = [member.unplaced for member in living]
                    if not refused:
                        own.exchanging.acquire()
                        return own
                    if all(refused):
                        raise next(filter(None, refused))
                    self._changed.wait()
            finally:
                self.waiting -= 1


def _levels() -> dict[str, int]:
    """Return the levels of all loggers that have one of their own."""
    loggers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    real = ((key, own) for key, own in loggers.items() if isinstance(own, logging.Logger))
    return {name: logger.level for name, logger in real if logger.level}
