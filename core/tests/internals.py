"""What tests know of the private parts of core: here, and nowhere else, tests adapt to a change of these parts."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

from headrace._language.building import builder
from headrace._language.building.parts import CloseStack
from headrace._language.registry.discovery import ELSEWHERE
from headrace._language.registry.registry import registry
from headrace._run import pipeline
from headrace._run import process as at_exit
from headrace._run.batches import batch as batches
from headrace._run.batches import dispatch, runners, standby
from headrace._run.batches.instance import Instance
from headrace._run.closing import Pass
from headrace._run.engine import Engine
from headrace._run.graph import walk
from headrace._run.node import Node
from headrace._run.records.failures import FailureLog
from headrace._run.records.statistics import Tally, Timings
from headrace._run.requests import deadlocks
from headrace._run.requests.current import entries_of
from headrace._run.steps import threads
from headrace._run.steps.box import Box, ask
from headrace._run.steps.threads import Pool
from headrace_testing import FakeClock

KNOWN_ELSEWHERE, KNOWN_POLICIES = ELSEWHERE["backends"], ELSEWHERE["policies"]

__all__ = [
    "KNOWN_ELSEWHERE",
    "KNOWN_POLICIES",
    "CloseStack",
    "FailureLog",
    "Pass",
    "Pool",
    "Timings",
    "at_exit",
    "batches",
    "builder",
    "registry",
    "threads",
    "walk",
]


def never_skips_the_queue(monkeypatch):
    """Let no caller skip the queue of an idle node, in the pipelines that are made from now on."""

    def queued(node):
        return replace(node, limits=replace(node.limits, shortcut=False))

    def engine(blueprint):
        nodes = {name: queued(node) for name, node in blueprint.nodes.items()}
        return Engine(replace(blueprint, nodes=nodes))

    monkeypatch.setattr(pipeline, "Engine", engine)


def may_skip_the_queue(monkeypatch):
    """Take back `never_skips_the_queue`."""
    monkeypatch.setattr(pipeline, "Engine", Engine)


def after_steps(monkeypatch, function):
    """Call a function whenever steps of some pipeline have run."""
    run = Box._run

    def noticed(box, *step):
        run(box, *step)
        function()

    monkeypatch.setattr(Box, "_run", noticed)


def refuse_threads(monkeypatch):
    """Let no thread be started any more; those of the pool that are there have ended."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    threads.current.pool._parked.clear()
    monkeypatch.setattr(threads._thread, "start_new_thread", refuse)


def threads_of_their_own(monkeypatch):
    """Give the pipelines that are made from now on a pool of threads which no other one has, and return it."""
    monkeypatch.setattr(threads, "current", threads.Threads())
    return threads.current.pool


def circles_are_looked_for_at_once(monkeypatch):
    """Let the second look for circles of calls come soon after the first; ``deadlock_after_s`` says when that is."""
    monkeypatch.setattr(deadlocks, "APART_S", 0.02)


# What is open in a pipeline.


def state_of(pipe):
    """Return all fields of the only instance, and the counts of its node; of what differs each time only whether it is set."""
    (node,) = pipe._engine.nodes
    (instance,) = node.instances
    counted = {f"node.{name}": getattr(node.counts, name) for name in Tally.__slots__}
    counted |= {name: getattr(instance, name) for name in Tally.__slots__}
    fields = {**vars(instance), **counted, "node.entered": node.entered, "free": [*node.free]}
    for name, value in fields.items():
        if isinstance(value, Timings):
            fields[name] = value.count if name.endswith("waited") else value.summary()
        elif isinstance(value, dict):
            fields[name] = dict(value)
    fields["holder"] = None if instance.holder is None else "set"
    fields["ident"] = "this thread" if instance.ident == threading.get_ident() else instance.ident
    fields["running_weight"] = instance.running_weight
    shown = pipe.stats()["nodes"]["main"]
    del shown["queue_ms"], shown["instances"][0]["utilisation"]
    return {**fields, "shown": shown}


def settled(pipe):
    """Return once the steps of a pipeline that were put in have run."""
    ask(pipe._engine.box, bool)


def runs_take(monkeypatch, seconds):
    """Let each run of a batch take so long, on the clock by which it is timed."""
    times = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(times) * seconds)
    monkeypatch.setattr(batches, "time", clock)


def sets_more(monkeypatch, place, name):
    """Let the beginning or the end of a batch from the queue change one field of its instance more."""
    cls, method = {"begin": (Instance, "begin"), "end": (Node, "give_back")}[place]
    function = getattr(cls, method)

    def changed(*args, **keys):
        function(*args, **keys)
        instance = next(value for value in args if isinstance(value, Instance))
        setattr(instance, name, "more" if name == "reason" else getattr(instance, name, 0) + 1)

    monkeypatch.setattr(cls, method, changed)


def put_off_s(monkeypatch, seconds):
    """Let callers that are put off sleep so long at most."""
    monkeypatch.setattr(runners, "PUT_OFF_S", seconds)


def callers_come_again_within(monkeypatch, seconds):
    """Let a batch wait so long for callers that were just answered."""
    monkeypatch.setattr(dispatch, "RETURN_PARTS", 1e-9)
    monkeypatch.setattr(dispatch, "RETURN_S", seconds)


def put_off(pipe):
    """Return how many callers the instance of the only node will wake once its device works."""
    (node,) = pipe._engine.nodes
    (instance,) = node.instances
    return len(instance.batch_end.rested)


def standing_by(pipe):
    """Return how many callers, or lists of one, stand by at the only node."""
    (node,) = pipe._engine.nodes
    return len(node.standby.turns)


def stand_by(monkeypatch, seconds):
    """Let callers stand by for so long."""
    monkeypatch.setattr(standby, "STANDBY_S", seconds)


def in_queue(pipe):
    """Return how many requests are in the queue of the only node now; no step runs for it."""
    (node,) = pipe._engine.nodes
    return node.queue.count + len(node.inbox)


def open_entries(pipe):
    """Return the entries that run, wait or are PENDING, each with its node."""

    def look(node):
        node.take_in()
        running = [entry for one in node.instances for entry in one.entries or ()]
        return [*running, *node.queue, *node.room.outside, *node.pending.open]

    def all_open():
        return [(entry, one) for one in pipe._engine.nodes for entry in look(one)]

    return threads.run_in_pool(ask, pipe._engine.box, all_open)


def expire(node, entry):
    """Let the deadline of an entry pass, as the timer does."""
    threads.run_in_pool(ask, node.box, node.fail_late, entry)


def terms_of(request):
    """Return deadline and priority of a request in the batch that runs here."""
    (entry,) = entries_of([request])
    return entry.deadline, entry.priority


def elements_of(pipe, name="main"):
    """Return what was built for each element of a node's expression."""
    return pipe._engine.built[name].elements.by_element


# Time that a test lets pass.


class HandTimer:
    """The timer of pipelines whose clock a test moves: it calls what is due when the test says so."""

    def __init__(self):
        self.clock = FakeClock(100.0)
        self._heap, self._order, self._lock = [], itertools.count(), threading.Lock()

    def call_at(self, at, action):
        alarm = threads.Alarm(self, action)
        with self._lock:
            heapq.heappush(self._heap, (at, next(self._order), alarm))
        return alarm

    def remove(self):
        """An alarm that was taken back is not called."""

    def waiting(self):
        """Return how many alarms are to come."""
        with self._lock:
            return sum(alarm.action is not None for _, _, alarm in self._heap)

    def run_due(self):
        """Call what is due; return how much that was."""
        called = 0
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > self.clock():
                    return called
                _, _, alarm = heapq.heappop(self._heap)
            action, alarm.action = alarm.action, None
            if action is not None:
                action()
                called += 1


def time_by_hand(monkeypatch):
    """Return the timer, which has a clock, of the pipelines that are made from now on."""
    timer = HandTimer()
    given = threads.Threads(timer.clock)
    given.timer = timer
    monkeypatch.setattr(threads, "current", given)
    return timer


def own_threads():
    """Let pipelines that are made in the block run on a pool and a timer of their own."""
    return threads.apart(time.monotonic)


def refuse_thread(*_):
    """Refuse to start a thread, as the system does where there are too many."""
    raise RuntimeError("can't start new thread")
