"""Process: a backend in a process of its own."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic import Field

from headrace._checked import Outcomes, Presence, batch_alone
from headrace._options import Options as _Options
from headrace._plan.declared import Needs, keys_named
from headrace._plan.word import Word, needs_of
from headrace.errors import ContractError, InstanceLostError
from headrace.words._exchange import Exchange, lend
from headrace.words._supervisor import Child, Restarts, Supervisor, how_ended

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._backend import Backend, InitContext
    from headrace._build.elements import ElementBuilder
    from headrace._build.parts import At
    from headrace._plan.element import Element
    from headrace.keys import Request
    from headrace.words._exchange import Entries

__all__ = ["Process"]


class Process(Word):
    """Let X live in a process of its own: ``Process[X]``.

    X has an interpreter, an interpreter lock and a memory of its own: for Python code that computes and
    holds the lock, for a library that several instances cannot share in one process, for one that may
    crash or hang. ``init``, every ``forward`` and ``close`` of X happen in the main thread there;
    whichever thread has the batch here sends it and waits for the answer.

    A copy of the keys that X reads goes there, and what X wrote comes back; large arrays and ``bytes``
    through shared memory. What X changes in place without writing it to a key, changes in its copy alone.
    What X names must be inside: queues, nodes and registered instances of the
    pipeline are not there. A class or function that X uses must be importable: part of an installed
    module, or of a file that the configuration imports. Log records and warnings of X arrive here.

    When the process dies, its batch fails with InstanceLostError, or, if all that stands inside says
    ``rerun``, each of its items runs once more, alone, in the process of another instance that has
    nothing to do, or in the next of its own. The process is started again, after growing pauses; when it
    has died more than ``restart_limit`` times within a minute, the instance is lost.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises; InputError when a key that X reads cannot be copied; ContractError when one that
        it wrote cannot; InstanceLostError when the process has died.
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
            description="Kill the process when a batch runs for so long (ms) after the last deadline "
            "of its requests; none: never. A batch with a request without deadline is not killed.",
        )

    takes = 1
    builds_elsewhere = True

    @classmethod
    def _needs(cls, element: Element, built: Mapping[int, Backend]) -> Needs:
        """Give what is needed inside, which the other process has reported once it is built."""
        made = built.get(id(element))
        if made is None:
            return needs_of(element.children[0], built)
        return dict.fromkeys(keys_named(made, None, "reads"), element.name)

    def _prepare(self, building: ElementBuilder, element: Element, at: At) -> None:
        """Take note of which of the node's words this is."""
        self._word = id(element)

    def init(self, options: Options, context: InitContext) -> None:
        """Start the process, build X there, and take over its range.

        Raises:
            SetupError: It could not be built, or the process ended.
        """
        (plan,) = context.children
        self.exchanging = threading.Lock()
        self._borrower: int | None = None
        key = ("headrace.process", self._word)
        self._siblings: Siblings = context.shared.get_or_create(key, Siblings)
        name = f"headrace-{context.node_name}-{context.instance_index}-process"
        first, restarts = {"plan": plan, "levels": _levels()}, Restarts(options.restart_limit)
        self._presence = self._lost or Presence()
        self.supervisor = Supervisor(name, first, restarts, self._presence, self._siblings.look)
        self._child = self.supervisor.start(context.cancelled)
        self._presence.ends.append(self.supervisor.kill)
        self._take(self._child.about, options)
        self._siblings.members.append(self)

    def _take(self, about: dict[str, Any], options: Options) -> None:
        """Take over what the process has reported of what was built there."""
        self.min, self.max, self.rerun = about["min"], about["max"], about["rerun"]  # type: ignore[misc]
        self.reads = about["needs"]
        kill_after_s = None if options.kill_after_ms is None else options.kill_after_ms / 1000
        self._exchange = Exchange({*about["keys"]}, {*about["reads"]}, kill_after_s)

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run X on the batch in its process; where that dies, each item once more if it may.

        Raises:
            InstanceLostError: The process has died.
            ContractError: This thread waits for the process already, and was interrupted there.
        """
        if self._borrower is not None and self._borrower == threading.get_ident():
            what = "a signal handler called the pipeline in a thread that waits for this process"
            hint = "Let the handler use Pipeline.submit, or a thread of its own."
            raise ContractError(what, hint=hint)
        ran_here = self._presence.entries() if self._whole else ()
        entries = {id(entry.request): entry for entry in ran_here}
        if self.min == 1:  # who goes away while a process is started again may be left out
            lend(entries.values())
        try:
            with self.exchanging:
                return self.run(batch, entries)
        except InstanceLostError as error:
            if not self.rerun:
                raise
            lend(entries.values())
            died = error.with_traceback(None)
        finally:
            if self._siblings.waiting:
                self._siblings.look()
        each = [batch_alone(self, request) for request in batch]
        return [died if one is None else self._once_more(one, entries) for one in each]

    def _once_more(self, alone: list[Request], entries: Entries) -> Exception | None:
        """Run one item alone, elsewhere; give its outcome."""
        entry = entries.get(id(alone[0]))
        if entry is not None and entry.lent == []:
            return None  # its owner has gone away with it
        one = self._siblings.borrow(self)
        ends, kill = self._presence.ends, one.supervisor.kill
        ends.append(kill)
        one._borrower = threading.get_ident()
        try:
            outcome = (one.run(alone, entries) or [None])[0]
        except InstanceLostError as error:
            return error
        finally:
            ends.remove(kill)
            one._borrower = None
            one.exchanging.release()
            self._siblings.look()
        if isinstance(outcome, InstanceLostError) and one is not self:
            one._lose(outcome)
            outcome.node = self._node
        return outcome

    def describe(self) -> dict[str, Any]:
        """Give the number of the process, and what was built there."""
        about = (self.supervisor.current or self._child).about
        return {"process": about["process"], "tree": about["tree"]}

    def close(self) -> None:
        """Close X and end the process; one that does not end is killed."""
        with self.exchanging:  # an item of another instance may run there
            self.supervisor.close()
            self._child.close()
        with suppress(ValueError):
            self._siblings.members.remove(self)
        self._siblings.look()

    # One batch.

    def run(self, batch: list[Request], entries: Entries) -> Outcomes:
        """Run a batch there.

        Raises:
            InstanceLostError: The process has died.
        """
        child = self._child
        if child is not self.supervisor.current or child.channel.awaits:
            child = self._living()
        try:
            outcomes = self._exchange.run(child, batch, entries)
        except EOFError:
            raise self._death(child) from None
        except TimeoutError:
            child.kill()
            raise self._death(child, hung=True) from None
        except BaseException:
            if child.channel.awaits:  # Ctrl-C: nobody will read the answer
                child.kill()
            raise
        for outcome in outcomes or ():
            if isinstance(outcome, InstanceLostError):
                # It is raised anew here, so that the instance is known to be lost.
                outcome.node = None
        return outcomes

    def _living(self) -> Child:
        """Give the process that lives, and the descriptors of one that does not back."""
        try:
            child = self.supervisor.child()
            if child.channel.awaits:  # whoever was interrupted there could not even kill it
                child.kill()
                child.ended.wait()
                child = self.supervisor.child()
        except InstanceLostError as error:
            error.node = self._node  # by whom the instance is lost is known
            raise
        if child is not self._child:
            self._child.close()
            self._child = child
        return child

    def _death(self, child: Child, hung: bool = False) -> InstanceLostError:
        """Make the error of a batch whose process has died, once that is noted everywhere."""
        child.ended.wait()
        hint = "X is slower than the deadlines, or hangs." if hung else None
        if not hung and child.status == -9:
            hint = "The system kills so what takes more memory than there is."
        killed = ", killed for running on after the deadlines" if hung else ""
        what = f"its process has died {how_ended(child.status)}{killed}"
        return InstanceLostError(what, hint=hint, node=self._node, instance=self._index)


class Siblings:
    """The processes of one word, one per instance of a node: each may run one more item for another.

    Attributes:
        members: All of them.
        waiting: How many threads wait for one of them.
    """

    def __init__(self) -> None:
        self.members: list[Process] = []
        self.waiting = 0
        self._changed = threading.Condition()

    def look(self) -> None:
        """Let those who wait look again: a process has been left, has come back, or is no more."""
        with self._changed:
            self._changed.notify_all()

    def borrow(self, own: Process) -> Process:
        """Give one whose process lives and does nothing, rather another than ``own``, once there is one.

        The caller holds its ``exchanging`` then, and calls `look` once that is released. When no process
        lives or is started any more, ``own`` is given.
        """
        with self._changed:
            # This thread counts itself first and looks at the locks then. Another thread releases a lock
            # first and looks at the count then. Either this one finds the lock free, or that one notifies.
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
