"""The scheduler of one node: its waiting line, its instances and whoever runs their batches.

One lock guards the line, the free instances and the states of the entries. Whoever changes any of
them calls `_dispatch` before leaving the lock, which claims instances for all batches that are due
and gives each to a thread: the calling one, a caller that sleeps in the batch, a runner, or the
thread that owns the instance. So no batch that is due can be left behind.

Every entry gets exactly one outcome, in `_settle`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling import batch as _batch
from headrace._scheduling.entry import DONE, NEW, OUTSIDE, QUEUED, RUNNING, Entry, checked_weight
from headrace._scheduling.executors import Caller, Runner, Work
from headrace._scheduling.instance import FAST_S
from headrace._scheduling.line import QueueView, WaitingLine
from headrace._scheduling.signal import Signal
from headrace._scheduling.timer import shared_timer
from headrace._scheduling.timings import Timings
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ContractError,
    DeadlineExceededError,
    OverloadedError,
    code_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.instance import Instance
    from headrace._scheduling.timer import Timer
    from headrace.keys import Request
    from headrace.policies import BatchPolicy, DispatchPolicy

__all__ = ["Limits", "Scheduler"]


@dataclass(frozen=True)
class Limits:
    """The queue keys of a node.

    Attributes:
        queue_size: How many requests may wait.
        queue_full: ``"wait"``, ``"reject"`` or ``"shed_oldest"``.
        timeout_ms: Longest time from arrival to the end, None for no limit.
        batching_timeout_ms: How long the oldest request waits for company.
        batch_sizes: The weights a batch may have; empty for all.
        pad: Whether a batch that is too small is filled with copies of its last item.
        shortcut: Whether a caller that finds the node idle may skip the queue.
    """

    queue_size: int = 1024
    queue_full: str = "wait"
    timeout_ms: float | None = None
    batching_timeout_ms: float = 0.0
    batch_sizes: tuple[int, ...] = ()
    pad: bool = False
    shortcut: bool = True


class Scheduler:
    """The queue and the instances of one node; every method may be called from any thread."""

    def __init__(
        self,
        name: str,
        instances: Sequence[Instance],
        batch_policy: BatchPolicy,
        dispatch_policy: DispatchPolicy,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
        timer: Timer | None = None,
    ) -> None:
        self.name = name
        self.instances = list(instances)
        self.limits = limits
        self._batches = batch_policy
        self._dispatches = dispatch_policy
        self._clock = clock
        self._timer = timer or shared_timer()
        self._lock = threading.Lock()
        self._free: list[Instance] = list(self.instances)
        self._line = WaitingLine()
        self._outside: OrderedDict[Entry, None] = OrderedDict()
        self._done: list[Entry] = []
        self._runners: list[Runner] = []  # those that sleep
        self._wake_at: float | None = None
        self._refusing: ClosedError | None = None
        self._dead = False
        self._retire: Callable[[Instance], None] | None = None
        self._quiet = threading.Event()  # set when closing and nothing is open any more
        self._entered = 0
        self._failures: dict[str, int] = {}
        self._linger = limits.batching_timeout_ms > 0
        self.max = _widest([i.max for i in self.instances])
        self.min = min(i.min for i in self.instances)
        self._alike = len({(i.min, i.max) for i in self.instances}) == 1
        self._direct_max = self._weight_for_shortcut()

    def _weight_for_shortcut(self) -> int:
        """Give the greatest weight that may skip the queue, 0 for none."""
        usable = (
            self.limits.shortcut
            and self._batches.sends_when_idle
            and self.limits.timeout_ms is None
            and self._alike
            and self.min == 1
            and not self.limits.batch_sizes
            and all(i.thread is None for i in self.instances)
        )
        if not usable:
            return 0
        return 2**63 if self.max is None else self.max

    # Ways in.

    def call(self, request: Request) -> None:
        """Run one request for a caller that waits without a deadline; raises its error."""
        weight = checked_weight(request, self.name) if self._is_odd(request) else 1
        data = request["data"]
        request.pop("result", None)
        if weight > self._direct_max:
            self.call_many([Entry(request, None, weight=weight)], raises=True)
            return
        instance: Instance | None = None
        try:
            with self._lock:
                free = self._free
                if (
                    free
                    and not self._line.count
                    and self._refusing is None
                    and (not self._linger or len(free) == len(self.instances))
                ):
                    # No call between the claim and the note of it: an interrupt here loses nothing.
                    instance = free[0]
                    instance.holder = request
                    del free[0]
            if instance is not None:
                error = self._call_alone(instance, request, data)
        except Exception:
            raise
        except BaseException:
            self._recover(request)
            request["data"] = data
            request.pop("result", None)
            raise
        if instance is None:
            self.call_many([Entry(request, None, weight=weight)], raises=True)
        elif error is not None:
            raise error

    def _is_odd(self, request: Any) -> bool:
        """Tell whether a request needs a closer look than its type and its key ``data``."""
        try:
            return type(request) is not dict or "data" not in request or "request_size" in request
        except TypeError:
            return True

    def _call_alone(self, instance: Instance, request: Request, data: Any) -> BaseException | None:
        """Run a caller's own single request on the instance it claimed, in its own thread."""
        instance.ident = get_ident()
        count = instance.direct = instance.direct + 1
        if count & instance.mask:
            outcomes = instance.backend([request])
        else:
            begun = time.perf_counter()
            outcomes = instance.backend([request])
            instance.timed(time.perf_counter() - begun)
            instance.waited.add(0.0)
        error: BaseException | None = None
        if outcomes is not None:
            error = outcomes[0]
        if error is None and "result" not in request:
            error = _batch.no_result(self.name, instance)
        request["data"] = data
        if error is not None:
            request.pop("result", None)
            instance.failed(code_of(error))
        with self._lock:
            instance.holder = None
            self._free.append(instance)
            if not self._line.count and self._refusing is None:
                return error
            retire = self._retire
            leader = Caller(instance.ident)
            work = self._dispatch(leader)
            done = self._take_done()
        _tell(done)
        if retire is not None:
            retire(instance)
        if work is not None:
            self._drive(leader, work)
        return error

    def call_many(
        self, entries: Sequence[Entry], *, raises: bool = False, internal: bool = False
    ) -> Sequence[Entry]:
        """Run entries of one calling thread and wait for them; their outcomes are in them.

        Args:
            entries: New entries; those that are DONE already keep their outcome.
            raises: Raise the error of the only entry instead.
            internal: They come from a backend of this pipeline, which closing does not refuse.
        """
        now = self._clock()
        open_entries = [entry for entry in entries if entry.state == NEW]
        deadlines = [d for e in open_entries if (d := self._set_times(e, now)) is not None]
        caller = Caller(get_ident(), runs=not deadlines, pending=len(open_entries))
        for entry in open_entries:
            entry.owner = caller
        try:
            with self._lock:
                self._enter(open_entries, caller, internal=internal)
                work = self._dispatch(caller)
                done = self._take_done()
            _tell(done)
            self._wait(caller, open_entries, work, min(deadlines, default=None))
        except BaseException as interrupt:
            if self._withdraw(caller, open_entries):
                interrupt.abandoned = True  # type: ignore[attr-defined]
            raise
        if raises and entries[0].error is not None:
            raise entries[0].error
        return entries

    def submit(self, entry: Entry, *, waits_for_room: bool = False) -> None:
        """Let an entry run for an owner that does not wait in this thread.

        Args:
            entry: A new entry.
            waits_for_room: Come back only when it has been let into the queue, or is done.
        """
        now = self._clock()
        deadline = self._set_times(entry, now)
        if deadline is not None:
            entry.alarm = self._timer.call_at(deadline, lambda: self._expire(entry))
        with self._lock:
            self._enter([entry], None)
            self._dispatch(None)
            if waits_for_room and entry.state == OUTSIDE:
                entry.room = Signal()
            done = self._take_done()
        _tell(done)
        if entry.room is not None:
            try:
                entry.room.sleep()
            except BaseException:
                self.cancel(entry)
                raise

    def cancel(self, entry: Entry) -> bool:
        """Take an entry that waits out of the queue; False when it runs or is done."""
        with self._lock:
            if entry.state not in (QUEUED, OUTSIDE):
                return False
            self._take_out(entry)
            entry.state = DONE
            self._count("cancelled")
            if entry.alarm is not None:
                entry.alarm.cancel()
            if entry.room is not None:
                entry.room.wake()
            self._after_room()
            self._dispatch(None)
            done = self._take_done()
        _tell(done)
        return True

    def abandon(self, entry: Entry) -> bool:
        """Forget an entry whose owner was freed; True when a backend still runs on it."""
        with self._lock:
            running = entry.state == RUNNING
            if running:
                entry.state = DONE
                self._count("cancelled")
        return running

    # Entering and leaving the line. All of these run under the lock.

    def _set_times(self, entry: Entry, now: float) -> float | None:
        entry.arrival = now
        if self.limits.timeout_ms is not None:
            own = now + self.limits.timeout_ms / 1000
            entry.deadline = own if entry.deadline is None else min(own, entry.deadline)
        return entry.deadline

    def _enter(
        self, entries: Sequence[Entry], caller: Caller | None, *, internal: bool = False
    ) -> None:
        self._entered += len(entries)
        closed = self._refusing if self._dead or not internal else None
        refused: BaseException | None = None
        if closed is None and caller is not None and not self._free and self._held_here():
            refused = ContractError(
                "a backend called its own pipeline, which waits for the instance that it holds",
                node=self.name,
                hint="Call another pipeline, or compose the backends in one expression.",
            )
        for entry in entries:
            error = refused or closed or self._unfit(entry)
            if error is not None:
                self._settle(entry, _own(error))
            elif self._line.count < self.limits.queue_size and not self._outside:
                self._push(entry)
            else:
                self._enter_full(entry)

    def _held_here(self) -> bool:
        me = get_ident()
        return any(i.holder is not None and i.ident == me for i in self.instances)

    def _unfit(self, entry: Entry) -> BaseException | None:
        if entry.deadline is not None and entry.deadline <= entry.arrival:
            return self._deadline_error(entry, running=False)
        if self.max is None or entry.weight <= self.max:
            return None
        return BatchRangeError(
            f"a request of weight {entry.weight} fits no instance: the greatest max is {self.max}",
            weight=entry.weight,
            min=self.min,
            max=self.max,
            node=self.name,
            hint="Send fewer rows in one request, or raise the node's max.",
        )

    def _push(self, entry: Entry) -> None:
        entry.state = QUEUED
        self._line.push(entry)

    def _enter_full(self, entry: Entry) -> None:
        rule = self.limits.queue_full
        if rule == "wait":
            # What a due batch takes makes room; only what then still does not fit stays outside.
            entry.state = OUTSIDE
            self._outside[entry] = None
            return
        shed = entry
        if rule == "shed_oldest" and self._line.count:
            oldest = self._line.oldest_of_lowest()
            if oldest.priority <= entry.priority:
                shed = oldest
        waiting = self._line.count
        if shed is not entry:
            self._line.remove(shed)
            self._push(entry)
        self._settle(shed, self._overloaded(waiting, shed=shed is not entry))

    def _overloaded(self, waiting: int, *, shed: bool) -> OverloadedError:
        size = self.limits.queue_size
        what = "made way for a newer request" if shed else "the queue is full"
        return OverloadedError(
            f"{what}: {waiting} requests wait, queue_size is {size}",
            queue_size=size,
            waiting=waiting,
            node=self.name,
            hint="Send fewer at a time, raise queue_size, or set queue_full = 'wait'.",
        )

    def _after_room(self) -> None:
        """Let in who waits for room, first come first served."""
        while self._outside and self._line.count < self.limits.queue_size:
            entry, _ = self._outside.popitem(last=False)
            self._push(entry)
            if entry.room is not None:
                entry.room.wake()

    def _take_out(self, entry: Entry) -> None:
        if entry.state == QUEUED:
            self._line.remove(entry)
        elif entry.state == OUTSIDE:
            del self._outside[entry]

    def _settle(
        self, entry: Entry, error: BaseException | None, at: Instance | None = None
    ) -> None:
        """Give an entry its one outcome."""
        entry.state = DONE
        entry.error = error
        request = entry.request
        abandoned = getattr(error, "abandoned", False)
        if isinstance(request, dict) and not abandoned:
            request["data"] = entry.data
            if error is not None:
                request.pop("result", None)
        if error is not None:
            if at is None:
                self._count(code_of(error))
            else:
                at.failed(code_of(error))
        if entry.alarm is not None:
            entry.alarm.cancel()
        if entry.room is not None:
            entry.room.wake()
        owner = entry.owner
        if isinstance(owner, Caller):
            owner.pending -= 1
            if not owner.pending and owner.parked:
                owner.signal.wake()
        else:
            self._done.append(entry)

    def _count(self, code: str) -> None:
        self._failures[code] = self._failures.get(code, 0) + 1

    def _take_done(self) -> list[Entry]:
        done, self._done = self._done, []
        return done

    # Cutting batches. Under the lock.

    def _dispatch(self, me: Caller | Runner | None) -> Work | None:
        """Claim instances for all batches that are due; give back the one that ``me`` runs."""
        mine: Work | None = None
        offered = list(self._free) if self._line.count else []
        wake_at: float | None = None
        while offered and self._line.count:
            now = self._clock()
            chosen = self._dispatches.choose(self._line.weight, offered)
            if chosen is None:
                break
            instance: Instance = chosen  # type: ignore[assignment]
            view = QueueView(self._line, len(self.instances) - len(self._free))
            cut = self._batches.cut(view, instance, now)
            if cut.take <= 0:
                offered.remove(instance)
                if cut.wake_at is not None:
                    wake_at = cut.wake_at if wake_at is None else min(wake_at, cut.wake_at)
                continue
            entries = self._take(cut.take, now)
            self._after_room()
            work = self._claim(instance, entries)
            if work is None:
                offered = list(self._free)
                continue
            offered.remove(instance)
            if mine is None and self._may_run(me, work):
                instance.holder = me
                mine = work
            else:
                self._give(work)
        self._plan_wake(wake_at)
        self._look_if_quiet()
        return mine

    def _take(self, count: int, now: float) -> list[Entry]:
        """Take ``count`` entries out of the line; those whose time is over fail instead."""
        taken = []
        for _ in range(min(count, self._line.count)):
            entry = self._line.pop()
            if entry.deadline is not None and entry.deadline <= now:
                self._settle(entry, self._deadline_error(entry, running=False))
            else:
                taken.append(entry)
        return taken

    def _claim(self, instance: Instance, entries: list[Entry]) -> Work | None:
        """Claim ``instance`` for ``entries``; None when none is left or they may not run."""
        if not entries:
            return None
        weight = sum(entry.weight for entry in entries)
        if instance.max is not None and weight > instance.max:
            # Only a foreign policy can do this; the range is exact all the same.
            error: BaseException | None = BatchRangeError(
                f"the batch policy cut a weight of {weight} for a max of {instance.max}",
                weight=weight,
                min=instance.min,
                max=instance.max,
                node=self.name,
            )
        else:
            sizes, pad = self.limits.batch_sizes, self.limits.pad
            error = _batch.refusal(self.name, weight, instance, sizes, pad=pad)
        if error is not None:
            for entry in entries:
                self._settle(entry, _own(error))
            return None
        instance.holder = entries
        self._free.remove(instance)
        instance.entries = entries
        instance.running_weight = weight
        instance.queued += 1
        instance.sizes[len(entries)] = instance.sizes.get(len(entries), 0) + 1
        timed = not instance.queued & instance.mask
        now = self._clock() if timed else 0.0
        for entry in entries:
            entry.state = RUNNING
            if timed:
                instance.waited.add((now - entry.arrival) * 1000)
        return Work(instance, entries)

    def _may_run(self, me: Caller | Runner | None, work: Work) -> bool:
        """Tell whether the calling thread may run ``work`` itself."""
        if me is None or work.instance.thread is not None:
            return False
        if isinstance(me, Runner):
            return True
        if not me.runs:
            return False
        own = [entry.owner is me for entry in work.entries]
        if me.main:
            return all(own)
        if any(own):
            return True
        if work.instance.mean_s >= FAST_S:
            return False
        now = time.perf_counter()
        if me.foreign_until is None:
            me.foreign_until = now + FAST_S
        return now < me.foreign_until

    def _give(self, work: Work) -> None:
        """Give ``work`` to the thread that owns the instance, a waiting caller, or a runner."""
        thread = work.instance.thread
        if thread is not None:
            thread.post(lambda: self._drive_owned(work))
            return
        for entry in work.entries:
            owner = entry.owner
            if (
                isinstance(owner, Caller)
                and owner.parked
                and owner.work is None
                and self._may_run(owner, work)
            ):
                work.instance.holder = owner
                owner.work = work
                owner.signal.wake()
                return
        self._give_runner(work)

    def _give_runner(self, work: Work) -> None:
        if self._runners:
            runner = self._runners.pop()
            work.instance.holder = runner
            runner.work = work
            runner.signal.wake()
            return
        runner = Runner(work)
        work.instance.holder = runner
        thread = threading.Thread(
            target=self._run_runner, args=(runner,), name=f"headrace-{self.name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._release(work, [_no_thread(self.name, error) for _ in work.entries])

    def _plan_wake(self, wake_at: float | None) -> None:
        """See to it that somebody calls `_dispatch` at ``wake_at``."""
        if wake_at is None or (self._wake_at is not None and self._wake_at <= wake_at):
            return
        self._wake_at = wake_at
        self._timer.call_at(wake_at, self._on_wake)

    def _on_wake(self) -> None:
        with self._lock:
            self._wake_at = None
            self._dispatch(None)
            done = self._take_done()
        _tell(done)

    # Running batches. Without the lock.

    def _drive(self, me: Caller | Runner, work: Work | None) -> None:
        """Run ``work`` and what follows for ``me``; raises the interrupt that hit this thread."""
        while work is not None:
            errors, interrupt = _batch.run(
                self.name, work, self.limits.batch_sizes, pad=self.limits.pad
            )
            foreign = isinstance(me, Runner) or not any(e.owner is me for e in work.entries)
            with self._lock:
                self._release(work, errors)
                # Code of the user may take any time: it must not keep the next batch waiting.
                calls_out = any(entry.owner.has_callbacks for entry in self._done)
                stops = calls_out or (interrupt is not None and not foreign)
                retire, instance = self._retire, work.instance
                work = self._dispatch(None if stops else me)
                done = self._take_done()
            _tell(done)
            if retire is not None:
                retire(instance)
            if interrupt is not None and not foreign:
                raise interrupt

    def _drive_owned(self, work: Work) -> None:
        """Run one batch in the thread that owns its instance."""
        errors, _ = _batch.run(self.name, work, self.limits.batch_sizes, pad=self.limits.pad)
        with self._lock:
            self._release(work, errors)
            retire = self._retire
            self._dispatch(None)
            done = self._take_done()
        _tell(done)
        if retire is not None:
            retire(work.instance)

    def _release(self, work: Work, errors: Sequence[BaseException | None]) -> None:
        """Give back an instance and settle its batch. Under the lock."""
        instance, entries = work
        if instance.entries is entries:
            instance.entries = None
            instance.running_weight = 0
            instance.holder = None
            self._free.append(instance)
        for entry, error in zip(entries, errors, strict=True):
            if entry.state == RUNNING:
                self._settle(entry, error, instance)

    def _wait(
        self,
        caller: Caller,
        entries: Sequence[Entry],
        work: Work | None,
        deadline: float | None,
    ) -> None:
        """Run what is given to ``caller``, sleep in between, until all its entries are done."""
        while True:
            self._drive(caller, work)
            with self._lock:
                caller.parked = False
                work, caller.work = caller.work, None
                now = self._clock() if deadline is not None else 0.0
                if work is None and deadline is not None and now >= deadline:
                    self._expire_now(entries, now)
                if work is None and not caller.pending:
                    done = self._take_done()
                    break
                caller.parked = work is None
                done = self._take_done()
            _tell(done)
            if work is None:
                caller.signal.sleep(None if deadline is None else deadline - now)
        _tell(done)

    def _run_runner(self, runner: Runner) -> None:
        """Run batches until the node is closed."""
        work, runner.work = runner.work, None
        while True:
            self._drive(runner, work)
            with self._lock:
                work = self._dispatch(runner)
                done = self._take_done()
                if work is None:
                    if self._refusing is not None or len(self._runners) >= len(self.instances):
                        runner.stopped = True
                    else:
                        self._runners.append(runner)
            _tell(done)
            if work is None and not runner.stopped:
                runner.signal.sleep()
                work, runner.work = runner.work, None
            if runner.stopped and work is None:
                return

    # Interrupts and deadlines.

    def _recover(self, holder: object) -> None:
        """Give back the instance that an interrupted thread had claimed for ``holder``."""
        with self._lock:
            for instance in self.instances:
                if instance.holder is holder:
                    instance.failed("interrupt")
                    instance.holder = None
                    self._free.append(instance)
            self._dispatch(None)
            done = self._take_done()
        _tell(done)

    def _withdraw(self, caller: Caller, entries: Sequence[Entry]) -> bool:
        """Take back all that an interrupted caller has left; True if a backend runs on any."""
        abandoned = False
        with self._lock:
            caller.parked = False
            given, caller.work = caller.work, None
            if given is not None:
                self._give_runner(given)
            for instance in self.instances:
                if instance.holder is caller and instance.entries is not None:
                    left = instance.entries
                    error = BackendError("the thread that ran the batch was interrupted")
                    self._release(Work(instance, left), [error.copy() for _ in left])
            for entry in entries:
                if entry.state in (QUEUED, OUTSIDE):
                    self._take_out(entry)
                    self._settle(entry, BackendError("the caller was interrupted"))
                elif entry.state == RUNNING:
                    abandoned = True
                    entry.state = DONE
                    self._count("interrupt")
            self._after_room()
            self._dispatch(None)
            done = self._take_done()
        _tell(done)
        return abandoned

    def _deadline_error(self, entry: Entry, *, running: bool) -> DeadlineExceededError:
        where = "while a backend ran on it" if running else "while it waited"
        return DeadlineExceededError(
            f"the time of the request was over {where}", node=self.name, abandoned=running
        )

    def _expire_now(self, entries: Sequence[Entry], now: float) -> None:
        """Fail all entries whose time is over. Under the lock."""
        for entry in entries:
            if entry.state == DONE or entry.deadline is None or entry.deadline > now:
                continue
            running = entry.state == RUNNING
            self._take_out(entry)
            self._settle(entry, self._deadline_error(entry, running=running))
        self._after_room()
        self._dispatch(None)

    def _expire(self, entry: Entry) -> None:
        with self._lock:
            if entry.state != DONE:
                running = entry.state == RUNNING
                self._take_out(entry)
                self._settle(entry, self._deadline_error(entry, running=running))
                self._after_room()
                self._dispatch(None)
            done = self._take_done()
        _tell(done)

    # Closing.

    def refuse(self, error: ClosedError, *, drain: bool) -> None:
        """Refuse newcomers from now on; fail those that wait for room, and all without drain."""
        with self._lock:
            if self._refusing is None:
                self._refusing = error
                self._direct_max = 0
            for entry in list(self._outside):
                self._take_out(entry)
                self._settle(entry, _own(error))
            while not drain and self._line.count:
                self._settle(self._line.pop(), _own(error))
            self._dispatch(None)
            done = self._take_done()
        _tell(done)

    def wait_quiet(self, timeout_s: float) -> bool:
        """Wait until nothing waits or runs; False when the time was over first."""
        with self._lock:
            self._look_if_quiet()
        return self._quiet.wait(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))

    def fail_open(self, error: ClosedError, retire: Callable[[Instance], None]) -> None:
        """Fail all that is still open; those a backend runs on are abandoned.

        Args:
            error: What they get.
            retire: Called with each instance whose batch ends later.
        """
        with self._lock:
            self._dead = True
            self._retire = retire
            while self._line.count:
                self._settle(self._line.pop(), _own(error))
            for instance in self.instances:
                for entry in instance.entries or ():
                    if entry.state == RUNNING:
                        self._settle(entry, ClosedError(str(error), abandoned=True))
            done = self._take_done()
        _tell(done)

    def after_fork(self, error: ClosedError) -> None:
        """Refuse everything in a child process; the lock may have been held by another thread."""
        self._lock = threading.Lock()
        self._refusing, self._dead, self._direct_max = error, True, 0

    def stop_runners(self) -> None:
        """End the runner threads that sleep; the others end with their batch."""
        with self._lock:
            runners, self._runners = self._runners, []
            for runner in runners:
                runner.stopped = True
                runner.signal.wake()

    def held_by_this_thread(self) -> bool:
        """Tell whether the calling thread runs a batch of this node."""
        with self._lock:
            return self._held_here()

    def idle_instances(self) -> list[Instance]:
        """Give the instances on which nothing runs."""
        with self._lock:
            return list(self._free)

    def _look_if_quiet(self) -> None:
        waiting = self._line.count or self._outside
        if self._refusing is not None and not waiting and len(self._free) == len(self.instances):
            self._quiet.set()

    # Looking.

    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the node."""
        with self._lock:
            forward, waited = Timings(), Timings()
            failed = dict(self._failures)
            sizes: dict[int, int] = {}
            direct = 0
            for instance in self.instances:
                forward.merge(instance.forward)
                waited.merge(instance.waited)
                direct += instance.direct
                for code, count in instance.failures.items():
                    failed[code] = failed.get(code, 0) + count
                for size, count in instance.sizes.items():
                    sizes[size] = sizes.get(size, 0) + count
            submitted = direct + self._entered
            waiting = self._line.count + len(self._outside)
            running_now = sum(
                len([e for e in i.entries if e.state == RUNNING]) if i.entries else 1
                for i in self.instances
                if i.holder is not None
            )
            instances = [instance.statistics() for instance in self.instances]
        if direct:
            sizes[1] = sizes.get(1, 0) + direct
        total = sum(sizes.values())
        items = sum(size * count for size, count in sizes.items())
        return {
            "waiting": waiting,
            "submitted": submitted,
            "ok": max(0, submitted - sum(failed.values()) - waiting - running_now),
            "failed": failed,
            "batches": total,
            "batch_size": {
                "mean": round(items / total, 4) if total else 0.0,
                "histogram": dict(sorted(sizes.items())),
            },
            "queue_ms": waited.summary(),
            "forward_ms": forward.summary(),
            "instances": instances,
        }


def _tell(done: Sequence[Entry]) -> None:
    for entry in done:
        entry.owner.finished(entry)


def _own(error: BaseException) -> BaseException:
    """Give an error object for one request alone."""
    if isinstance(error, ClosedError):
        return ClosedError(error.args[0], abandoned=error.abandoned)
    copy = getattr(error, "copy", None)
    return copy() if copy is not None else error


def _no_thread(node: str, cause: BaseException) -> BackendError:
    error = BackendError(f"no thread could be started to run the batch: {cause}", node=node)
    error.__cause__ = cause
    return error


def _widest(maxima: Sequence[int | None]) -> int | None:
    bounded = [m for m in maxima if m is not None]
    return max(bounded) if len(bounded) == len(maxima) else None
