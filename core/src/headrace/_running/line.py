"""Callers that wait for an instance stand in line, past the box: who has one runs what stands there, and hands it on.

Only what has no deadline, priority or weight stands here, and all of it has come after what waits in the queue. A step that lets
something else into the queue lets in first what stands here. Who ends a request of its own on the short cut, and finds callers in
line, runs theirs as well for `LEADS_S`: the instance is never idle while a thread wakes up. Then the first in line is given
the instance, held, and goes on in the same way. So each waits for its turn, and nobody is passed by.

No wake is lost: who stands here looks at `Node.free` after it has come, and who frees an instance looks here afterwards (`match`).
Where something is special, or entries wait in the queue, a step sees to both.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from math import inf
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace._running import batch
from headrace._running.batch import batches_run
from headrace._running.box import ask, in_steps, post
from headrace._running.entry import DONE, NEW, RUNNING, Entry, own_error
from headrace._running.instance import LEADS_S, TINY_S
from headrace._running.refusals import unfit_error
from headrace._running.runners import Work, withdraw
from headrace._running.threads import Signal, calls_run, check_stack

if TYPE_CHECKING:
    from headrace._running.instance import Instance

LOOK_S = 200e-6
"""How often who is called looks for a free instance."""

TENURE_S = 250e-6
"""How often one of the instances of a node is handed to who stands first, where that takes longer than to run a request."""

TINY_TIMES = 4
"""How many times as long that is where requests are tiny: there all threads wait for the interpreter lock much longer."""

_first = deque.popleft
_pop = list.pop


class Turn(Signal):
    """One caller in line.

    Attributes:
        entry: Its request.
        ident: Its thread.
        internal: Whether the request comes from another node.
        instance: The instance that it was given, and has not seen yet.
        is_called: Whether it is awake now and then, and looks for a free instance itself.
        is_over: Whether it has been told of its outcome. A probe may have to be told first.
    """

    __slots__ = ("entry", "ident", "instance", "internal", "is_called", "is_over")

    def __init__(self, entry: Entry, ident: int, *, internal: bool) -> None:
        check_stack()
        super().__init__()
        self.entry, self.ident, self.internal = entry, ident, internal
        self.instance: Instance | None = None
        self.is_called = self.is_over = False
        entry.then, entry.awaited = self.end, ident

    def end(self, _: Entry) -> None:
        """Wake the caller, whose request has its outcome."""
        self.is_over = True
        try:  # noqa: SIM105 - as in `Signal.wake`, which is one call more
            self._lock.release()
        except RuntimeError:
            pass


class Line:
    """The callers that stand in line at one node.

    Attributes:
        turns: Who stands here, first come first served.
        is_open: Whether callers may stand here.
        leads: Whether who has an instance may run what stands here without a step, since no policy has to be asked.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self.turns: deque[Turn] = deque()
        self.is_open = self.leads = False

    def set_bounds(self, *, is_open: bool, leads: bool) -> None:
        """Set who may stand here, after keys, policies or instances have changed."""
        self.is_open, self.leads = is_open, leads
        alone = self._node.max == 1
        self._tenure_s = TENURE_S * len(self._node.instances) if alone else 0.0
        self._leads_s = 0.0 if alone else LEADS_S
        self._has_threads = any(one.thread is not None for one in self._node.instances)

    def takes(self, entry: Entry) -> bool:
        """Tell whether the calling thread may stand here with an entry, and will not wait for itself."""
        node, me = self._node, get_ident()
        if not self.is_open or node.special or node.room.outside or me in in_steps:
            return False
        if entry.deadline is not None or entry.priority or entry.weight != 1:
            return False
        if me in batches_run or me in calls_run:
            return False
        if entry.ticket is None and node.room.tickets and node.room.full:
            return False
        return me not in [one.ident for one in node.instances]

    def wait(self, entry: Entry, *, internal: bool) -> None:
        """Stand in line until the entry has its outcome."""
        node = self._node
        turn = Turn(entry, get_ident(), internal=internal)
        try:
            if entry.ticket is not None:
                entry.ticket.stand()
            self.turns.append(turn)
            self._look()
            while not turn.is_over:
                turn.sleep(LOOK_S if turn.is_called and entry.state == NEW else None)
                instance, turn.instance = turn.instance, None
                if instance is None:
                    if node.free and entry.state == NEW:
                        self.match()
                elif node.special:
                    instance.ident = 0
                    post(node.box, self._put_back, instance, turn)
                else:
                    if node.free:  # somebody else is called, who is not awake yet
                        self._call()
                    self.lead(instance, entry)
        except BaseException as raised:
            raised.abandoned = ask(node.box, self._withdraw, turn)  # type: ignore[attr-defined]
            entry.give_back()
            raise

    def _look(self) -> None:
        """Have what stands here run where perhaps no batch will end."""
        node = self._node
        watched = node.watched or node.limits.deadlock_after_s <= 0
        if not watched or (node.free and self._has_threads) or self._needs_a_step():
            post(node.box, node.note_change)
        elif node.free:
            self.match()

    def _needs_a_step(self) -> bool:
        """Tell whether a step has to see to the node before anybody is given an instance."""
        node = self._node
        return bool(node.special or node.queue.count or node.room.outside)

    # Whoever has an instance, in any thread.

    def _call(self) -> None:
        """Call who stands first, after an instance has come free."""
        try:
            first = self.turns[0]
        except IndexError:
            return
        if not first.is_called:
            first.is_called = True
            first.wake()

    def stay(self, instance: Instance) -> None:
        """Leave an instance whose requests are tiny, most likely to this thread again; who stands first is called."""
        node = self._node
        instance.ident, instance.holder = 0, None
        node.free.append(instance)
        self._call()
        if self._needs_a_step():
            post(node.box, node.note_change)

    def lead(self, instance: Instance, own: Entry | None = None) -> None:
        """Run what stands here on an instance that this thread holds, for a while, and hand it on.

        Args:
            instance: The instance.
            own: The request of this thread, which runs first.
        """
        me, is_own = get_ident(), instance.thread is not None
        goes_on = is_own or (
            self._leads_s > instance.mean_s and me not in batches_run and me not in calls_run
        )
        until = inf if is_own else perf_counter() + self._leads_s
        while own is not None or goes_on:
            entries = self._take(instance, own)
            if not entries:
                break
            own = None
            if not self._run(instance, entries, me):
                return
            goes_on = goes_on and perf_counter() < until and not self._needs_a_step()
        stays = perf_counter() < instance.until
        if not (stays or is_own or self._needs_a_step()) and self._give(instance):
            return
        self._leave(instance)
        if is_own:
            if self.turns:
                post(self._node.box, self._node.note_change)
        elif stays:
            self._call()
        else:
            self.match()

    def follows(self, instance: Instance) -> bool:
        """Tell whether the own thread of an instance goes on with what stands here, once it has told the outcomes of its batch."""
        node = self._node
        waits = self.turns and self.leads and node.reporter is None
        return bool(instance.thread is not None and waits and not self._needs_a_step())

    def match(self) -> None:
        """Give free instances to who stands first."""
        free, turns = self._node.free, self.turns
        while free and turns and not self._needs_a_step():
            try:
                (instance,) = map(_pop, (free,), (0,))
                instance.holder = self
            except IndexError:
                return
            if not self._give(instance):
                self._leave(instance)

    def _leave(self, instance: Instance) -> None:
        """Leave an instance to who comes first. Who waits in the queue may have come since the last look."""
        node = self._node
        instance.running_weight = instance.ident = 0
        instance.entries = instance.holder = None
        node.free.append(instance)
        if self._needs_a_step():
            post(node.box, node.note_change)

    def _give(self, instance: Instance) -> bool:
        """Give an instance that this thread holds to who stands first; False where nobody does."""
        try:
            # With what follows one step, so that all counts agree.
            (turn,) = map(_first, (self.turns,))
        except IndexError:
            return False
        turn.entry.state, turn.instance, instance.led = RUNNING, instance, instance.led + 1
        instance.ident, instance.holder, instance.entries = turn.ident, turn, [turn.entry]
        most = self._tenure_s if instance.mean_s >= TINY_S else TINY_TIMES * self._tenure_s
        instance.until = perf_counter() + most
        turn.wake()
        return True

    def _take(self, instance: Instance, own: Entry | None) -> list[Entry]:
        """Take the next batch out of the line, behind the own request of this thread."""
        entries, most, turns = [] if own is None else [own], self._node.max or 2**31, self.turns
        instance.entries = entries
        while turns and len(entries) < most:
            try:
                (turn,) = map(_first, (turns,))  # as above
            except IndexError:
                break
            turn.entry.state, instance.led = RUNNING, instance.led + 1
            entries.append(turn.entry)
        return entries

    def _run(self, instance: Instance, entries: list[Entry], me: int) -> bool:
        """Run a batch; False where a step ends it, and takes the instance."""
        node, work = self._node, Work(self._node, instance, entries)
        begun = node.clock()
        timed = not (instance.queued + 1) & instance.mask
        for entry in entries:
            entry.cut = begun
            if entry.ticket is not None:
                entry.ticket.stand_down()
            if timed:
                instance.waited.add((begun - entry.arrival) * 1000)
        instance.ident, instance.holder, instance.running_weight = me, work, len(entries)
        instance.queued += 1
        instance.sizes[len(entries)] += 1
        instance.reason = "idle"
        if len(entries) == node.max:
            instance.reason = "full"
            instance.reasons["full"] += 1
        reporter = node.reporter
        run = batch.run if reporter is None else reporter.run
        errors, interrupt = run(instance, entries, node)
        if errors is not None or interrupt is not None or reporter is not None or node.special:
            instance.ident = 0
            post(node.box, node.end_batch, work, errors, None)
            return False
        for entry in entries:
            then, entry.then = entry.then, None
            if then is not None:  # else a step has failed it meanwhile
                entry.state = DONE
                then(entry)
        return True

    # Steps.

    def look(self) -> None:
        """See to who stands here, as an instance may be free."""
        node = self._node
        if not self.turns:
            return
        if node.special or node.room.outside or not self.leads:
            self.let_in()
        elif node.free and not node.queue.count and not self._has_threads:
            self.match()
        elif node.free:  # what one batch holds: who comes next stands here again
            self.let_in(max(0, (node.max or 2**31) - node.queue.weight))

    def let_in(self, count: int | None = None) -> None:
        """Let who stands first into the queue, or all."""
        while self.turns and count != 0:
            try:
                turn = self.turns.popleft()
            except IndexError:
                return
            count = None if count is None else count - 1
            self._enter(turn)

    def _enter(self, turn: Turn) -> None:
        node, entry = self._node, turn.entry
        node.entered += 1
        error = node.refusal(turn.internal) or unfit_error(node, entry)
        if error is None:
            node.queue.add(entry)
            return
        if entry.ticket is not None:
            entry.ticket.stand_down()
        node.settle(entry, own_error(error))

    def _put_back(self, instance: Instance, turn: Turn) -> None:
        """Take back an instance that a turn was given just as something became special."""
        if instance.holder is turn:
            instance.led, turn.entry.state = instance.led - 1, NEW
            self._node.give_back(instance)
            self._enter(turn)
        self._node.note_change()

    def _withdraw(self, turn: Turn) -> bool:
        """Take a caller out that was interrupted; tell whether a backend goes on with its request."""
        node, instance = self._node, turn.instance
        if instance is not None and instance.holder is turn:
            instance.led, turn.entry.state = instance.led - 1, NEW
            node.give_back(instance)
            node.note_change()
        with suppress(ValueError):
            self.turns.remove(turn)
        if turn.entry.ticket is not None:
            turn.entry.ticket.stand_down()
        return withdraw([turn.entry])
