"""Kills in virtual time: a stand-in takes the place of the process and its pipes, and all of this side is as it is."""

from __future__ import annotations

import io
import pickle
import random
import threading
import time
from queue import SimpleQueue
from typing import ClassVar

import pytest

import headrace
from headrace.errors import InstanceLostError
from headrace_process.apart import Apart
from headrace_process.far import run
from headrace_process.places import Restarts
from headrace_testing import virtual_time

KILLS = 1000


class Doubles(headrace.Backend):
    """Twice the number, after 20 ms."""

    max = 3

    def forward(self, batch):
        time.sleep(0.02)
        for request in batch:
            request["result"] = 2 * request["data"]


class Link:
    """This side of a link: a queue each way, and the values of the batch that has no answer yet."""

    def __init__(self):
        self.there, self.back = SimpleQueue(), SimpleQueue()
        self.awaits, self.unanswered = False, []

    def begin(self):
        """Numbers travel in the message itself."""

    def send(self, message, *, awaits=False):
        self.awaits, self.unanswered = awaits, message[1][0] if awaits else []
        self.there.put(pickle.dumps(message))

    def receive(self, timeout_s=None):
        answer = self.back.get()
        if answer is None:
            raise EOFError
        self.awaits, self.unanswered = False, []
        return pickle.loads(answer)

    def end(self):
        self.there.put(None)

    def cut(self):
        self.back.put(None)

    close = end


class Reports(io.RawIOBase):
    """The socket on which all arrives that is no answer."""

    def __init__(self):
        super().__init__()
        self.came, self.left, self.over = SimpleQueue(), b"", False

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.left and not self.over:
            self.left = self.came.get()
            self.over = not self.left
        part, self.left = self.left[: len(buffer)], self.left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def makefile(self, _):
        return io.BufferedReader(self)

    def shutdown(self, _):
        self.came.put(b"")


class StandIn:
    """A thread in place of a process, until it is killed."""

    started: ClassVar[list] = []

    def start(self):
        self.link, self.reports, self.ended = Link(), Reports(), threading.Event()
        self.started.append(self)
        threading.Thread(target=self._live, daemon=True).start()
        return self.link, self.reports

    def _live(self):
        if first := self._next():
            built = first["part"].build(first["seen"])
            names = ("min", "max", "rerun", "needs", "reads", "keys")
            about = {name: getattr(built, name) for name in names}
            about |= {"process": len(self.started), "tree": built.describe()}
            self.reports.came.put(pickle.dumps(("built", pickle.dumps(about))))
        while message := self._next():
            number, packed, measures, _, limits = message
            answer = run(built, packed, measures, None, self.link, number, limits)
            if not self.ended.is_set():
                self.link.back.put(pickle.dumps((number, 0, *answer)))
        self.ended.set()

    def _next(self):
        message = self.link.there.get()
        return None if message is None or self.ended.is_set() else pickle.loads(message)

    def wait(self):
        self.ended.wait()

    def kill(self):
        self.ended.set()

    def how_ended(self):
        return "of the test", None

    def close(self):
        """The link and the reports are all that is open."""


class Standing(Apart):
    """Lets X live there."""

    def place_of(self, index):
        return StandIn()

    def restarts(self):
        return Restarts(longest_pause_s=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("instances", [1, 3])
def test_a_thousand_kills_lose_the_batches_that_ran_there(monkeypatch, instances):
    for made_of in (Standing, Doubles):
        headrace.register(made_of.__name__, made_of, replace=True)
    monkeypatch.setattr(StandIn, "started", [])
    answered, died, wrong, kills, draw = [], [], [], 0, random.Random(instances)

    def ask(one):
        while not over.is_set():
            one += 10
            try:
                (answered if pipe({"data": one})["result"] == 2 * one else wrong).append(one)
            except InstanceLostError as error:
                (died if "has died of the test" in str(error) else wrong).append(one)

    with (
        virtual_time(),
        headrace.pipe(
            {"backend": "Standing[Doubles]", "max": 3, "instance_num": instances}
        ) as pipe,
    ):
        over = threading.Event()
        callers = [threading.Thread(target=ask, args=(one,)) for one in range(8)]
        for one in callers:
            one.start()
        while kills < KILLS:
            time.sleep(draw.choice([0.0, 0.005, 0.013, 0.02, 0.05]))
            alive = [one for one in StandIn.started if not one.ended.is_set()]
            if alive:
                draw.choice(alive).kill()
                kills += 1
        over.set()
        for one in callers:
            one.join()
        assert pipe({"data": 0})["result"] == 0
    lost = [value for one in StandIn.started for value in one.link.unanswered]
    assert (wrong, sorted(died)) == ([], sorted(lost))
    assert len({*died, *answered}) == len(died) + len(answered)
    assert len(died) > KILLS / 10
    assert len(answered) > KILLS / 10
