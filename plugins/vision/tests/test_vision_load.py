"""Live sources on a simulated clock: below capacity nothing is dropped, above it the shares are fair and frames young.

`VideoRunner` and the pipeline are the real ones, with their threads. Time is the test's: a source waits until the test
lets it give its next picture, the backend computes until the test lets it end, and between two events the test waits
until nothing moves any more.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import os
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace_vision import VideoRunner

SOURCES, FPS, BATCH = 8, 25, 8
PATIENCE_S = 120
"""Seconds of the machine after which something that must happen has not."""


class Machine:
    """A backend that computes for so many simulated seconds a batch, as `Simulation` says."""

    def __init__(self):
        self.changed = threading.Condition()
        self.batch = None
        self.finish = False

    def forward(self, batch):
        with self.changed:
            self.batch, self.finish = list(batch), False
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.finish, PATIENCE_S)
            self.batch = None
        for request in batch:
            request["result"] = request["context"]["frame"]


class Simulation:
    """Eight sources through one machine, event by event.

    Args:
        seconds_of: Returns the simulated seconds of a batch of n.
        for_s: How long the sources go on, in simulated seconds.
    """

    def __init__(self, seconds_of, for_s):
        self.seconds_of = seconds_of
        self.for_s = for_s
        self.now = 0.0
        self.ages = []
        self.delivered = dict.fromkeys(self.names(), 0)
        self.batches = []
        self._machine = Machine()
        self._turns = {name: threading.Semaphore(0) for name in self.names()}
        self._waits = {name: threading.Semaphore(0) for name in self.names()}
        self._ended = set()
        self._taken = threading.Condition()
        self._count = 0
        self._born = {}

    @staticmethod
    def names():
        return [f"s{number}" for number in range(SOURCES)]

    def _pictures(self, name):
        image = np.zeros((2, 2, 3), np.uint8)
        while True:
            self._waits[name].release()
            assert self._turns[name].acquire(timeout=PATIENCE_S)
            if name in self._ended:
                return
            yield image

    def run(self):
        """Run it to its end; return the status of the runner."""
        machine = self._machine

        class Backend(headrace.Backend):
            def forward(self, batch):
                machine.forward(batch)

        headrace.register("VisionMachine", Backend, replace=True)
        config = {"backend": "VisionMachine", "max": BATCH}
        with VideoRunner(config, frames="latest") as self.runner:
            loop = self.runner.run({name: self._pictures(name) for name in self.names()})
            consumer = threading.Thread(target=self._consume, args=(loop,))
            consumer.start()
            self._advance()
            consumer.join(PATIENCE_S)
            assert not consumer.is_alive()
            return self.runner.status()["sources"]

    def _consume(self, loop):
        for frame in loop:
            with self._taken:
                self.delivered[frame.source] += 1
                self.ages.append(self.now - self._born[frame.source, frame.frame])
                self._count += 1
                self._taken.notify_all()

    def _advance(self):
        for name in self.names():
            assert self._waits[name].acquire(timeout=PATIENCE_S)
        events = []  # time, number of the frame, source
        for number, name in enumerate(self.names()):
            heapq.heappush(events, (number / FPS / SOURCES, 0, name))
        due = None
        while events or due is not None:
            if due is not None and (not events or due <= events[0][0]):
                self.now = due
                self._end_batch()
            else:
                self.now, number, name = heapq.heappop(events)
                if number >= self.for_s * FPS:
                    self._ended.add(name)
                    self._turns[name].release()
                    continue
                self._born[name, number] = self.now
                self._turns[name].release()
                assert self._waits[name].acquire(timeout=PATIENCE_S)  # it was pushed
                begin = self.names().index(name) / FPS / SOURCES
                heapq.heappush(events, (begin + (number + 1) / FPS, number + 1, name))
            began = due is None or due <= self.now
            batch = self._current_batch()
            if batch is None:
                due = None
            elif began:
                self.batches.append(len(batch))
                due = self.now + self.seconds_of(len(batch))

    def _end_batch(self):
        machine = self._machine
        with self._taken:
            wanted = self._count + len(machine.batch)
        with machine.changed:
            machine.finish = True
            machine.batch = None
            machine.changed.notify_all()
        with self._taken:
            assert self._taken.wait_for(lambda: self._count >= wanted, PATIENCE_S)

    def _current_batch(self):
        """Wait until the machine computes, or there is nothing to compute; return its batch or None."""
        machine = self._machine
        with machine.changed:
            if machine.batch is not None:
                return machine.batch
        statuses = self.runner.status()["sources"].values()
        read = sum(one["read"] for one in statuses)
        gone = sum(one["dropped"] + one["delivered"] + one["failed"] for one in statuses)
        with machine.changed:
            if read > gone:
                assert machine.changed.wait_for(lambda: machine.batch is not None, PATIENCE_S)
            return machine.batch


def simulated(seconds_of, for_s):
    simulation = Simulation(seconds_of, for_s)
    return simulation, simulation.run()


def test_at_60_percent_of_capacity_nothing_is_dropped():
    # A full batch of 8 in 24 ms: 333 frames a second, of which 200 come.
    simulation, statuses = simulated(lambda n: 0.008 + 0.002 * n, 10.0)
    for one in statuses.values():
        assert (one["read"], one["dropped"]) == (one["delivered"], 0)
    assert sum(simulation.delivered.values()) == SOURCES * FPS * 10


def test_at_200_percent_of_capacity_the_shares_are_fair_and_frames_are_young():
    # A full batch of 8 in 80 ms: 100 frames a second, and 200 come.
    for_s, batch_s = 20.0, 0.08
    simulation, statuses = simulated(lambda n: 0.04 + 0.005 * n, for_s)
    delivered = list(simulation.delivered.values())
    capacity = BATCH / batch_s * for_s
    assert sum(delivered) >= 0.95 * capacity
    assert max(delivered) - min(delivered) <= 0.1 * max(delivered)
    assert max(simulation.ages) <= 3 * batch_s + 1e-9
    for one in statuses.values():
        assert one["read"] == one["delivered"] + one["dropped"] == FPS * for_s


class Numbers(headrace.Backend):
    """Adds how many frames of its source came before: state that a source has for itself."""

    def init(self, options, context):
        self.count = 0

    def forward(self, batch):
        for request in batch:
            request["result"] = self.count
            self.count += 1


def held():
    """Bytes of this process in memory, its threads, its open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    return pages * os.sysconf("SC_PAGE_SIZE"), threading.active_count(), files


def come_and_go(for_s):
    """Eight at a time at 25 frames a second, each for 5 to 40 seconds of its own time; then another one comes."""
    headrace.register("VisionNumbers", Numbers, replace=True)
    chance = random.Random(7)
    image = np.zeros((36, 64, 3), np.uint8)
    images = [image] * (40 * FPS)
    kinds = itertools.count()
    seen, lengths, frames = {}, {}, 0
    checks = []

    def next_source():
        name = f"source{next(kinds)}"
        lengths[name] = chance.randrange(5 * FPS, 40 * FPS)
        return {name: images[: lengths[name]]}

    config = {"backend": "Identity", "max": 8}
    with VideoRunner(config, ordered="VisionNumbers", sinks=[lambda frame: None]) as runner:
        keep_open = threading.Event()

        def open_end():
            keep_open.wait()
            return
            yield

        first = {name: x for _ in range(SOURCES) for name, x in next_source().items()}
        for frame in runner.run({"open": open_end(), **first}):
            count = seen.get(frame.source, 0)
            assert frame.error is None
            assert (frame.frame, frame.result) == (count, count)
            seen[frame.source] = count + 1
            frames += 1
            if seen[frame.source] == lengths[frame.source]:
                del seen[frame.source], lengths[frame.source]
                if frames < for_s * FPS * SOURCES:
                    runner.add(next_source())
            if frames % (for_s * FPS * SOURCES // 10) == 0:
                checks.append(held())
            if not lengths:
                keep_open.set()
        assert not seen
        assert len(runner.status()["sources"]) <= 256 + 1
    assert frames >= for_s * FPS * SOURCES
    early, late = checks[1], checks[-1]
    assert late[0] - early[0] < 30e6
    assert late[1] <= early[1] + 3 * SOURCES  # so many sources may be about to end or to begin
    assert not [one for one in threading.enumerate() if one.name == "headrace-vision-reader"]
    assert max(files for _, _, files in checks) <= early[2] + 4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("for_s", [90, pytest.param(3600, marks=pytest.mark.slow)])
def test_sources_that_come_and_go_leave_nothing_behind(for_s):
    # In a process of its own: the memory of this one is that of the tests before as well.
    from processes import run_process  # the other process is not in this folder of tests

    program = [sys.executable, __file__, str(for_s)]
    done = run_process(program)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    come_and_go(int(sys.argv[1]))
