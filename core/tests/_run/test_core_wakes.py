"""When a batch policy is asked: a node that is only woken when something changes, against one that looks all the time."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import never_skips_the_queue, time_by_hand

import headrace
from headrace.policies import BatchPolicy, Cut


def due(rule, oldest, weight, running, at):
    """Tell whether a batch is due: of so much weight, or after so many eighths of a second, or while nothing runs."""
    enough, patience, if_idle = rule
    waited = patience is not None and at - oldest >= patience
    return weight >= enough or waited or (if_idle and running == 0)


def longest(weights, most):
    """Return how many of the first requests fit together, and whether the next does not."""
    take = weight = 0
    while take < len(weights) and weight + weights[take] <= most:
        weight += weights[take]
        take += 1
    return take, take < len(weights) or weight == most


def policy_of(rule):
    class Drawn(BatchPolicy):
        def cut(self, queue, instance, now):
            weights = [queue[k].weight for k in range(len(queue))]
            take, full = longest(weights, instance.max)
            oldest = queue.oldest * 8
            if full or not queue.open or due(rule, oldest, sum(weights), queue.running, now * 8):
                return Cut(take)
            return Cut(0, None if rule[1] is None else (oldest + rule[1]) / 8)

    return Drawn


class Timed(headrace.Backend):
    """Begins when it is cut, on the clock of the test, and ends when the test says so."""

    class Options(headrace.Options):
        mark: int

    def init(self, options, context):
        self.run = runs[options.mark]
        self.index, self.goes_on = context.instance_index, threading.Semaphore(0)
        self.max = self.run.maxima[self.index]
        self.run.backends[self.index] = self

    def forward(self, batch):
        run = self.run
        run.log.append((run.tick(), self.index, [request["data"] for request in batch]))
        run.begun.release()
        assert self.goes_on.acquire(timeout=HANGS_S)
        for request in batch:
            request["result"] = request["data"]


runs = {}
"""By its mark, what a test lets happen in a pipeline."""

HANGS_S = 20.0


class Run:
    """A pipeline whose clock goes on in ticks of an eighth of a second."""

    def __init__(self, maxima, timer):
        self.maxima, self.timer, self.log = maxima, timer, []
        self.begun, self.backends = threading.Semaphore(0), {}

    def tick(self):
        return (self.timer.clock() - 100.0) * 8 - 1

    def until_begun(self, count):
        while len(self.log) < count:
            assert self.begun.acquire(timeout=HANGS_S), "a batch that is due did not begin"


@settings(max_examples=200, deadline=None)
@given(
    rule=st.tuples(st.integers(1, 8), st.none() | st.integers(0, 6), st.booleans()),
    arrivals=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=12),
    maxima=st.lists(st.integers(3, 6), min_size=1, max_size=3),
    lasts=st.integers(1, 5),
)
def test_batches_are_cut_when_they_are_due_and_at_no_other_time(rule, arrivals, maxima, lasts):
    script, expected = watched(rule, sorted(arrivals), maxima, lasts)
    headrace.register("Timed", Timed, replace=True)
    headrace.register("Drawn", policy_of(rule), replace=True)
    node = {"backend": "Timed(mark=1)", "batch_policy": "Drawn", "instance_num": len(maxima)}
    with pytest.MonkeyPatch.context() as patch:
        never_skips_the_queue(patch)  # there no policy is asked
        timer = time_by_hand(patch)
        run = runs[1] = Run(maxima, timer)
        pipe = headrace.pipe({"global": {"deadlock_after_s": 0}, "main": node})
        over = 0
        for (what, *args), begun in script:
            if what == "tick":
                timer.clock.advance(0.125)
                timer.run_due()
            elif what == "end":
                over += len([one for one in run.log if one[1] == args[0]][-1][2])
                run.backends[args[0]].goes_on.release()
                while (told := pipe.stats()["nodes"]["main"])["ok"] < over:
                    assert not told["failed"], told
            else:
                number, weight = args
                pipe.submit({"data": number, "request_size": weight})
            pipe.stats()
            run.until_begun(begun)
        for backend in run.backends.values():
            backend.goes_on.release(99)
        found = run.log[:]
        pipe.close()
    assert found == expected


def watched(rule, arrivals, maxima, lasts):
    """Do the same, looking at everything in every tick.

    Returns:
        What happens, each with how many batches have begun after it, and the batches.
    """
    script, log, waiting, batches = [], [], [], [0] * len(maxima)
    busy = {}

    def look(tick):
        offered = [index for index in range(len(maxima)) if index not in busy]
        # The one that rested longest stands first; it does not matter to best fit.
        while offered and waiting:
            total = sum(weight for _, _, weight in waiting)
            fitting = [i for i in offered if total <= maxima[i]]
            pool = fitting or offered
            sign = 1 if fitting else -1
            chosen = min(pool, key=lambda i: (sign * maxima[i], batches[i], i))
            offered.remove(chosen)
            take, full = longest([weight for _, _, weight in waiting], maxima[chosen])
            oldest = min(at for _, at, _ in waiting)
            if full or due(rule, oldest, total, len(busy), tick):
                log.append((tick, chosen, [number for number, _, _ in waiting[:take]]))
                del waiting[:take]
                batches[chosen] += 1
                busy[chosen] = tick + lasts
                offered = [index for index in range(len(maxima)) if index not in busy]

    for tick in range(40):
        look(tick)
        script.append((("tick",), len(log)))
        for index in range(len(maxima)):
            if busy.get(index, 99) <= tick:
                del busy[index]
                look(tick)
                script.append((("end", index), len(log)))
        for number, (at, weight) in enumerate(arrivals):
            if at == tick:
                waiting.append((number, at, weight))
                look(tick)
                script.append((("send", number, weight), len(log)))
    return script, log
