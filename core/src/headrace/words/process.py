"""Process: a backend in a process of its own."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from headrace._checked import Liveness, Outcomes, batch_alone
from headrace._options import Options as _Options
from headrace._plan.declared import Needs, keys_named
from headrace._plan.word import Word, needs_of
from headrace._process import read_cpus
from headrace.errors import ContractError, InstanceLostError
from headrace.words._exchange import Exchange, is_over, last_deadline, lend
from headrace.words._supervisor import Child, Restarts, Supervisor, how_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace._backend import Backend, InitContext
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import BuildSite
    from headrace._plan.element import Element
    from headrace.keys import Request
    from headrace.words._exchange import Entries

__all__ = ["Process"]


class Process(Word):
    """Let X live in a process of its own: ``Process[X]``.

    X has an interpreter, an interpreter lock and a memory of its own. Use it for Python code that computes
    and holds the lock, for a library that several instances cannot share in one process, and for one that
    may crash or hang. ``init``, every ``forward`` and ``close`` of X happen in the main thread of that
    process; the thread that runs the batch in this process sends it and waits for the answer. The processes
    of all instances of a node start at the same time.

    X gets copies of the keys that it reads, and what it wrote comes back; large arrays and ``bytes`` travel
    through shared memory. What X changes in place without writing it to a key, changes in its copy alone.
    X cannot name queues, nodes and registered instances of the pipeline: they are not in its process. A
    class or function that X uses must be importable: part of an installed module, or of a file that the
    configuration imports. Log records and warnings of X arrive in this process; loggers there have the levels
    that those here had at the start of the process. A note of an error (from Python 3.11 on) shows its traceback.

    A deadline frees its caller. Where ``Process`` is the outermost word of the node, the request is the
    caller's again at once, since X works on a copy: ``abandoned`` of the error is false.

    When the process dies, its batch fails with InstanceLostError; or, if all backends in X say ``rerun``,
    each item of the batch runs once more, alone, in the process of another, idle instance, or in the next
    process of this one. The process is started again, after growing pauses; when it has died more than
    ``restart_limit`` times within a minute, the instance is lost.

    The process uses the processors of the thread that starts it, or those that ``cpus`` names: so the program
    may keep to a few of them (``taskset -c 0-3 python service.py``) and the processes use all, or the others.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises; InputError when a key that X reads cannot be copied; ContractError when a key that
        X wrote cannot be copied; InstanceLostError when the process has died.
    Source:
        own
    Example:
        ``{"data": "fish &amp; chips"}`` gives ``"FISH & CHIPS"``::

            backend = "S[Process[Call(html:unescape)],Upper]"
    """

    class Options(_Options):
        """Options of Process."""

        restart_limit: int = Field(
            5, ge=0, description="How many times a minute the process is started again."
        )
        kill_after_ms: float | None = Field(
            None,
            ge=0,
            description="Kill the process when a batch of its instance runs for so long (ms) after the last "
            "deadline of its requests; none: never. A batch with a request without deadline is not killed, and "
            "inside another Process no deadlines are known.",
        )

        cpus: str | int | None = Field(
            None,
            description="The processors that the process may use, as taskset writes them (4-15, or 0,2); "
            "none: those of the thread that starts it.",
        )

        @field_validator("cpus")
        @classmethod
        def _judge_cpus(cls, cpus: str | int | None) -> str | int | None:
            if cpus is not None:
                read_cpus(str(cpus))
            return cpus

    takes = 1
    builds_elsewhere = True
    _liveness: Liveness  # the builder has set it before `init`

    @classmethod
    def _needs(cls, element: Element, built: Mapping[Element, Backend]) -> Needs:
        """Return the keys that X needs: once it is built, those that its process has reported."""
        made = built.get(element)
        if made is None:
            return needs_of(element.children[0], built)
        return dict.fromkeys(keys_named(made, None, "reads"), element.name)

    def _prepare(self, building: ElementBuilder, element: Element, at: BuildSite) -> None:
        """Keep the element: the instances of one ``Process`` find each other by it."""
        self._word = element
        # An instance that is built later has the same element, unless `init` of another backend asks for it.
        alike = at.index is not None and not building.asking
        self._alike = building.keys.instance_num if alike else 0

    def init(self, options: Options, context: InitContext) -> None:
        """Start the process, build X there, and take over its range.

        Raises:
            SetupError: X could not be built, or the process ended.
        """
        plan: Any = context.children[0]
        self.exchanging = threading.Lock()
        self._borrower: int | None = None
        self._siblings: Siblings = context.shared.get_or_create(("process", self._word), Siblings)
        first = {"levels": _levels(), "cpus": options.cpus}

        def supervise(index: int) -> Supervisor:
            name = f"headrace-{context.node_name}-{index}-process"
            message = {**first, "plan": plan._of_instance(index)}
            restarts = Restarts(options.restart_limit)
            return Supervisor(name, message, restarts, Liveness(), self._siblings.look)

        self.supervisor = self._siblings.supervisor(context.instance_index, self._alike, supervise)
        self.supervisor.liveness = self._liveness
        self._child = self.supervisor.start(context.cancelled)
        self._liveness.killers.append(self.supervisor.kill)
        self._take(self._child.about, options, plan)
        self._siblings.members.append(self)

    def _take(self, about: dict[str, Any], options: Options, plan: Any) -> None:
        """Take over what the process has reported of X, whose plan is ``plan``."""
        self.min, self.max, self.rerun = about["min"], about["max"], about["rerun"]  # type: ignore[misc]
        self.reads = about["needs"]
        kill_after_s = None if options.kill_after_ms is None else options.kill_after_ms / 1000
        self._exchange = Exchange({*about["keys"]}, {*about["reads"]}, kill_after_s, plan)

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run X on the batch in its process; if the process dies, each item once more if X says ``rerun``.

        Raises:
            InstanceLostError: The process has died.
            ContractError: A signal handler called the pipeline in a thread that waits for this process.
        """
        if self._borrower is not None and self._borrower == threading.get_ident():
            what = "a signal handler called the pipeline in a thread that waits for this process"
            hint = "Let the handler use Pipeline.submit, or a thread of its own."
            raise ContractError(what, hint=hint)
        ran_here = self._liveness.entries()
        last = last_deadline(ran_here)
        # In a larger expression what stands around goes on with the requests: no owner may leave with one.
        entries = {id(entry.request): entry for entry in ran_here} if self._whole else {}
        if self.min == 1:
            # `run` may wait until the process is started again. An owner whose deadline passes meanwhile may
            # leave: its request is left out of the batch, which cannot become smaller than the range of X.
            lend(entries.values())
        try:
            with self.exchanging:
                return self.run(batch, entries, last)
        except InstanceLostError as error:
            # In a larger expression it is not known which owners have left, only when all have.
            if not self.rerun or (not entries and is_over(last)):
                raise
            lend(entries.values())
            died = error.with_traceback(None)
        finally:
            if self._siblings.waiting:
                self._siblings.look()
        each = [batch_alone(self, request) for request in batch]
        return [
            died if alone is None or self._emitted(one) else self._once_more(alone, entries, last)
            for one, alone in zip(batch, each, strict=True)
        ]

    def _once_more(
        self, alone: list[Request], entries: Entries, last: float | None
    ) -> Exception | None:
        """Run one item alone in a process that lives; give its outcome."""
        entry = entries.get(id(alone[0]))
        if entry is not None and entry.lent == []:
            return None  # the owner has left with the request
        one = self._siblings.borrow(self)
        killers, kill = self._liveness.killers, one.supervisor.kill
        killers.append(kill)
        one._borrower = threading.get_ident()
        try:
            outcomes = one.run(alone, entries, last)
            outcome = None if outcomes is None else outcomes[0]
            if entry is not None:
                lend([entry])  # its owner may leave while a later item waits for a process
        except InstanceLostError as error:
            return error
        finally:
            killers.remove(kill)
            one._borrower = None
            one.exchanging.release()
            self._siblings.look()
        if isinstance(outcome, InstanceLostError) and one is not self:
            one._lose(outcome)
            outcome.node = self._node
        return outcome

    def describe(self) -> dict[str, Any]:
        """Return the process id, and as the child the tree of what was built in the process."""
        about = (self.supervisor.current or self._child).about
        return {"process": about["process"], "children": [about["tree"]]}

    def close(self) -> None:
        """Close X and end the process, which is killed when it does not end in time."""
        with self.exchanging:  # an item of another instance may run in the process
            self.supervisor.close()
            self._child.close()
        with suppress(ValueError):
            self._siblings.members.remove(self)
        self._siblings.look()

    def _last_label(self, request: Request) -> str:
        return self._exchange.plan.name

    # One batch. The thread that calls `run` holds `exchanging`.

    def run(self, batch: list[Request], entries: Entries, last: float | None) -> Outcomes:
        """Run a batch in the process; see `Exchange.run`.

        Raises:
            InstanceLostError: The process has died.
        """
        child = self._child
        if child is not self.supervisor.current or child.channel.awaits:
            child = self._living()
        try:
            return self._exchange.run(child, batch, entries, last)
        except EOFError:
            raise self._death(child) from None
        except TimeoutError:
            child.kill()
            raise self._death(child, hung=True) from None
        except BaseException:
            if child.channel.awaits:  # after Ctrl-C no thread will read the answer
                child.kill()
            raise

    def _living(self) -> Child:
        """Return the process that lives, once there is one, and close the descriptors of the one before."""
        try:
            child = self.supervisor.child()
            if child.channel.awaits:  # a second interrupt came before `run` could kill the process
                child.kill()
                child.ended.wait()
                child = self.supervisor.child()
        except InstanceLostError as error:
            # The supervisor decides whether the instance is lost. Without a node in the error `Checked`
            # would mark the instance as lost as well.
            error.node = self._node
            raise
        if child is not self._child:
            self._child.close()
            self._child = child
        return child

    def _death(self, child: Child, hung: bool = False) -> InstanceLostError:
        """Wait until the supervisor has noted the death of the process; make the error of its batch."""
        child.ended.wait()
        hint = "X is slower than the deadlines, or hangs." if hung else None
        if not hung and child.status == -9:
            hint = "Perhaps the system has killed it because memory ran out."
        killed = ", killed for running on after the deadlines" if hung else ""
        what = f"its process has died {how_ended(child.status)}{killed}"
        return InstanceLostError(what, hint=hint, node=self._node, instance=self._index)


class Siblings:
    """The instances of one ``Process[X]`` of a node: each may run an item of another one a second time.

    Attributes:
        members: The instances.
        waiting: How many threads wait in `borrow`.
    """

    def __init__(self) -> None:
        self.members: list[Process] = []
        self.waiting = 0
        self._early: dict[int, Supervisor] | None = None
        self._changed = threading.Condition()

    def supervisor(self, index: int, alike: int, make: Callable[[int], Supervisor]) -> Supervisor:
        """Give the supervisor of one instance, made by ``make(index)``.

        The first call makes those of all ``alike`` instances and begins their processes, which then start at the
        same time. The supervisors that no instance asks for are closed by `close`.
        """
        if self._early is None:
            self._early = {}
            for one in range(alike):
                self._early[one] = make(one)
                self._early[one].begin()
        return self._early.pop(index, None) or make(index)

    def close(self) -> None:
        """End the processes that were started for instances that have not been built."""
        for one in (self._early or {}).values():
            one.kill()
            one.close()

    def look(self) -> None:
        """Wake the threads in `borrow`: a process has become idle, has come back, or will not come back."""
        with self._changed:
            self._changed.notify_all()

    def borrow(self, own: Process) -> Process:
        """Wait for an idle living process and give its instance, preferably another one than ``own``.

        The lock ``exchanging`` of that instance is acquired for the caller, who releases it and then calls
        `look`. When no process lives and none is started any more, the answer is ``own``.
        """
        with self._changed:
            # This thread raises `waiting` first and tries the locks then. The thread that leaves a process
            # releases its lock first and reads `waiting` then. So either this thread finds the lock free,
            # or the other thread sees the count and notifies: no wake-up is lost.
            self.waiting += 1
            try:
                while True:
                    others = [one for one in [*self.members] if one is not own]
                    for one in (*others, own):
                        if one.supervisor.lives and one.exchanging.acquire(blocking=False):
                            return one
                    if all(one.supervisor.over for one in (*others, own)):
                        own.exchanging.acquire()
                        return own
                    self._changed.wait()
            finally:
                self.waiting -= 1


def _levels() -> dict[str, int]:
    """Give the levels of all loggers that have one of their own."""
    loggers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    made = {name: one for name, one in loggers.items() if isinstance(one, logging.Logger)}
    return {name: one.level for name, one in made.items() if one.level}
