"""The adapter between tests and the scheduler: what a test moves by hand, without threads and time of its own."""

from __future__ import annotations

import heapq
import itertools
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

from headrace._backend import InitContext
from headrace._build.wrappers import BatchEnd
from headrace._checked import Liveness
from headrace._scheduling import dispatch, pending, threads
from headrace._scheduling.batch import repeated as repeated
from headrace._scheduling.dispatch import Worker
from headrace._scheduling.entry import DONE as DONE
from headrace._scheduling.entry import NOBODY as NOBODY
from headrace._scheduling.entry import OUTSIDE as OUTSIDE
from headrace._scheduling.entry import PENDED as PENDED
from headrace._scheduling.entry import QUEUED as QUEUED
from headrace._scheduling.entry import RUNNING as RUNNING
from headrace._scheduling.entry import WAITING as WAITING
from headrace._scheduling.entry import Entry as Entry
from headrace._scheduling.instance import INLINE_BELOW_S as INLINE_BELOW_S
from headrace._scheduling.instance import Instance as Instance
from headrace._scheduling.instance import Limits as Limits
from headrace._scheduling.node import Waiter as Waiter
from headrace._scheduling.own_thread import OwnThread as OwnThread
from headrace._scheduling.queue import NodeQuota as NodeQuota
from headrace._scheduling.queue import RequestQueue as RequestQueue
from headrace._scheduling.queue import RequestQuota as RequestQuota
from headrace._scheduling.scheduler import Scheduler as Scheduler
from headrace._scheduling.threads import Signal as Signal

# Time, threads and owners, by hand.


class HandAlarm:
    def __init__(self, action):
        self.action = action

    def cancel(self):
        self.action = None


class HandTimer:
    """Calls what is due when the test moves the clock."""

    def __init__(self, clock):
        self.clock = clock
        self.order = itertools.count()
        self.heap = []

    def call_at(self, at, action):
        alarm = HandAlarm(action)
        heapq.heappush(self.heap, (at, next(self.order), alarm))
        return alarm

    def run_due(self):
        while self.heap and self.heap[0][0] <= self.clock():
            _, _, alarm = heapq.heappop(self.heap)
            action, alarm.action = alarm.action, None
            if action is not None:
                action()


class Hand:
    """The inbox of a thread that does nothing until the test lets it.

    Attributes:
        thread: The thread, for an instance that owns its thread.
        wanted: Whether it has other work besides, so that it is given one batch at a time.
    """

    def __init__(self, *, wanted=True):
        self.jobs = []
        self.wanted = wanted
        self.put = self.jobs.append
        self.thread = OwnThread("hand")
        self.thread._jobs = self
        self.thread.alive, self.thread.ident = True, -2

    def empty(self):
        return not self.wanted

    def work(self):
        """Do the first job."""
        self.jobs.pop(0)()


class Still(Instance):
    """Takes every batch to have lasted the same, however long this machine took."""

    def timed(self, duration_s):
        super().timed(50e-6)


class Owner:
    def __init__(self):
        self.notified = 0

    def finished(self, entry):
        entry.give_back()
        self.notified += 1


@contextmanager
def no_main_thread():
    """Take the thread of the tests for any other thread, and the only one: helpers do nothing for it.

    Who ends a request tells its holder itself; a helper would tell it a little after the test looks.
    """
    before = threads.main_thread.ident, pending.helpers
    threads.main_thread.ident = 0
    pending.helpers = SimpleNamespace(run=lambda function, *args: function(*args))
    del threads.sections[before[0]]
    try:
        yield
    finally:
        threads.main_thread.ident, pending.helpers = before
        threads.sections[before[0]] = threads.main_thread


def started(backend):
    """Return a backend as ``init`` leaves it, with the end of its batches; it may keep requests."""
    end, keeping = BatchEnd(), pending.Keeping(backend, dict)
    backend._liveness, backend._keeps = Liveness(), True
    kept = {name: getattr(keeping, name) for name in ("resume", "finish", "on_end", "unwanted")}
    backend._start(None, InitContext(at_batch_end=partial(end.register, backend), **kept))
    return end.around(backend)


# What a test sees of a scheduler, and does to it.


def free(scheduler):
    """Return the free instances, the one that is claimed next first."""
    return [*scheduler.node.idle, *scheduler.node.free]


def short_cut_max(scheduler):
    """Give the greatest weight of a request that its caller may run past the queue; 0 for none."""
    return scheduler._short_cut.max_weight


def workers_by_hand(scheduler, post):
    """Let ``post(instance, run)`` stand in for the workers: a batch begins when the test calls ``run()``."""
    dispatcher = scheduler.dispatcher
    give = dispatcher._give

    def given(work):
        if work.instance.thread is not None:
            give(work)
            return
        worker = Worker()
        worker.ident = -1
        work.instance.holder = worker

        def run():
            with scheduler.node.section:
                dispatcher.begin(work, worker)
            dispatcher.drive(work, worker)

        post(work.instance, run)

    dispatcher._give = given


def claims(scheduler):
    """Return a list to which the entries of every batch are added as it is cut from the queue."""
    found, dispatcher = [], scheduler.dispatcher
    begin = dispatcher._begin

    def noted(instance, entries, weight, now):
        found.extend(entries)
        return begin(instance, entries, weight, now)

    dispatcher._begin = noted
    return found


def interrupted(scheduler, entries):
    """Take entries back whose caller was interrupted; tell whether a backend runs on one of them."""
    return scheduler._withdraw(entries)


def dispatched(scheduler, runner=None):
    """Let begin what is due; give the batch for ``runner``, and when the timer looks at the queue next."""
    with scheduler.node.section:
        work = scheduler.dispatcher.dispatch(runner)
    return work, scheduler.dispatcher._wake_at


def refuse_workers(monkeypatch):
    """Let no worker be started from now on, as where the system has no thread left."""

    def refuse(**_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(dispatch, "threading", SimpleNamespace(Thread=refuse))
