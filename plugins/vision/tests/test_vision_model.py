"""`VideoRunner` beside a model of it: scripted sources, a clock and a network that go on when the test says so.

Between two events the test waits until what the model foresees has come about. So every case goes the same way each time,
with the real threads: which frame is dropped, which batch has it, what is delivered, is foreseen exactly.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace_vision import Clock, VideoRunner

PATIENCE_S = 120
"""Seconds of the machine after which something that must happen has not."""


class Network:
    """What the instances of the backend do: each batch waits until the test ends it."""

    def __init__(self):
        self.changed = threading.Condition()
        self.running = []
        self.is_free = False

    def forward(self, batch):
        mine = sorted((one["context"]["source"], one["context"]["frame"]) for one in batch)
        with self.changed:
            self.running.append(mine)
            self.changed.notify_all()
            assert self.changed.wait_for(
                lambda: self.is_free or mine not in self.running, PATIENCE_S
            )
        outcomes = []
        for request in batch:
            request["result"] = int(request["data"][0, 0, 0])
            outcomes.append(ValueError("this one") if request["result"] == BROKEN else None)
        return outcomes

    def finish(self, batch):
        with self.changed:
            self.running.remove(batch)
            self.changed.notify_all()

    def free(self):
        with self.changed:
            self.is_free = True
            self.changed.notify_all()


class Steps(Clock):
    """A clock that moves when the test says so, and lets one source go on at a time."""

    def __init__(self):
        self.changed = threading.Condition()
        self.time_s = 0.0
        self.due_s = {}  # by the event that stops the source
        self.is_free = False

    def now(self):
        with self.changed:
            return self.time_s

    def wait(self, stop, seconds):
        with self.changed:
            self.due_s[stop] = self.time_s + seconds
            self.changed.notify_all()
            assert self.changed.wait_for(
                lambda: self.is_free or stop not in self.due_s or stop.is_set(), PATIENCE_S
            )
            self.due_s.pop(stop, None)
            is_free = self.is_free
        return stop.wait(PATIENCE_S) if is_free else stop.is_set()

    def arrived(self, others):
        """Wait for a source that waits and is none of `others`; return what stops it."""
        with self.changed:
            assert self.changed.wait_for(lambda: set(self.due_s) - set(others), PATIENCE_S)
            (found,) = set(self.due_s) - set(others)
            return found

    def wait_for(self, stop):
        with self.changed:
            assert self.changed.wait_for(lambda: stop in self.due_s, PATIENCE_S)

    def step(self, stop):
        """Let a source go on, at the time for which it waits."""
        with self.changed:
            self.time_s = max(self.time_s, self.due_s.pop(stop))
            self.changed.notify_all()

    def poke(self):
        """Let the sources that are to stop see it."""
        with self.changed:
            self.changed.notify_all()

    def free(self):
        """Let every source wait for its stop alone."""
        with self.changed:
            self.is_free = True
            self.changed.notify_all()


class Before(headrace.Backend):
    """Adds the number of the frame before: right only if a source is alone and in order."""

    def init(self, options, context):
        self.before = None

    def forward(self, batch):
        for request in batch:
            request["result"] = (request["context"]["source"], request["data"], self.before)
            self.before = request["context"]["frame"]


GOOD, BROKEN, NO_PICTURE = 0, 1, 2
"""What a picture of a script is: one with a result, one that the network refuses, one that cannot be converted."""


class Asked:
    """How many pictures of a source were asked for: one more than were read, as soon as the last of these is on its way."""

    def __init__(self):
        self.changed = threading.Condition()
        self.count = 0

    def once_more(self):
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= count, PATIENCE_S)


def pictures(script, asked):
    known = {
        GOOD: np.full((2, 2, 3), GOOD, np.uint8),
        BROKEN: np.full((2, 2, 3), BROKEN, np.uint8),
        NO_PICTURE: np.zeros(3),
    }
    for kind in script:
        asked.once_more()
        yield known[kind]
    asked.once_more()


@dataclass
class Model:
    """What a source must do."""

    name: str
    script: list
    latest: bool
    in_flight: int
    fps: int
    zero_s: float
    read: int = 0
    dropped: int = 0
    number: int = 0  # of the next picture
    held: int = 0
    order: list = field(default_factory=list)  # frames in flight, oldest first
    taken: list = field(default_factory=list)
    before: int | None = None
    stopped: bool = False
    blocked: bool = False
    asked: Asked = field(default_factory=Asked)


class Case:
    """A runner and the models of its sources, moved on together."""

    def __init__(self, sources, most, instances):
        self.network, self.clock = Network(), Steps()
        network = self.network

        class Backend(headrace.Backend):
            def forward(self, batch):
                return network.forward(batch)

        headrace.register("VisionScripted", Backend, replace=True)
        headrace.register("VisionBefore", Before, replace=True)
        self.most, self.instances = most, instances
        config = {"backend": "VisionScripted", "max": most, "instance_num": instances}
        self.runner = VideoRunner(config, ordered="VisionBefore", machine_clock=self.clock)
        self.loop = self.runner.run()
        self.models, self.stops, self.handles = [], [], []
        self.queue, self.running, self.done = [], [], set()
        for number, (script, latest, in_flight, fps) in enumerate(sources):
            model = Model(f"s{number}", script, latest, in_flight, fps, self.clock.now())
            self.models.append(model)
            self.handles.append(
                self.runner.add(
                    {model.name: pictures(script, model.asked)},
                    frames="latest" if latest else "every",
                    in_flight=in_flight,
                    image_fps=fps,
                    realtime=True,
                )
            )
            self.stops.append(self.pushed(model, None))

    # What the model foresees, and the wait for it.

    def pushed(self, model, stop):
        """The next picture of a source is read: where does it go?"""
        if model.held == model.in_flight and model.latest:
            waiting = [one for one in self.queue if one[0] == model.name]
            model.dropped += 1
            if not waiting:
                model.read += 1
                model.number += 1
                return self.reader_is_back(model, stop)
            self.queue.remove(waiting[-1])
            model.order.remove(waiting[-1][1])
            model.held -= 1
        elif model.held == model.in_flight:
            model.blocked = True
            return stop
        number = model.number
        model.blocked = False
        model.read += 1
        model.held += 1
        model.number += 1
        model.order.append(number)
        if model.script[number] == NO_PICTURE:
            self.done.add((model.name, number))
        else:
            self.queue.append((model.name, number))
        self.batches_begin()
        return self.reader_is_back(model, stop)

    def reader_is_back(self, model, stop):
        model.asked.wait_for(model.number + 1)
        if model.number == len(model.script):
            return stop
        if model.zero_s + model.number / model.fps - self.clock.now() <= 0:
            return self.pushed(model, stop)  # it is late, and waits for no time
        if stop is None:
            return self.clock.arrived(self.stops)
        self.clock.wait_for(stop)
        return stop

    def batches_begin(self):
        """An idle instance takes what has waited longest: no source goes before another one."""
        while self.queue and len(self.running) < self.instances:
            self.running.append(sorted(self.queue[: self.most]))
            del self.queue[: self.most]
        wanted = sorted(self.running)
        with self.network.changed:
            assert self.network.changed.wait_for(
                lambda: sorted(self.network.running) == wanted, PATIENCE_S
            ), (self.network.running, wanted)

    def can_step(self):
        return [
            number
            for number, one in enumerate(self.models)
            if not (one.stopped or one.blocked) and one.number < len(one.script)
        ]

    def can_take(self):
        return [one for one in self.models if one.order and (one.name, one.order[0]) in self.done]

    # Events.

    def step(self):
        """Time goes on to the next picture of a source."""
        with self.clock.changed:
            due_s = {number: self.clock.due_s[self.stops[number]] for number in self.can_step()}
        number = min(due_s, key=lambda one: (due_s[one], one))
        self.clock.step(self.stops[number])
        self.pushed(self.models[number], self.stops[number])

    def finish(self, place):
        batch = self.running.pop(place % len(self.running))
        self.done.update(batch)
        self.network.finish(batch)
        self.batches_begin()

    def take(self):
        able = {one.name: one for one in self.can_take()}
        frame = next(self.loop)
        model = able[frame.source]
        number = model.order.pop(0)
        assert frame.frame == number
        model.held -= 1
        kind = model.script[number]
        assert (frame.error is None) == (kind == GOOD)
        if kind == GOOD:
            assert frame.result == (model.name, GOOD, model.before)
            model.before = number
        model.taken.append(number)
        if model.blocked and not model.stopped:
            self.pushed(model, self.stops[self.models.index(model)])

    def stop(self, number):
        model = self.models[number]
        self.handles[number].stop()
        self.clock.poke()
        gone = [one for one in self.queue if one[0] == model.name]
        self.queue = [one for one in self.queue if one[0] != model.name]
        for _, frame in gone:
            model.order.remove(frame)
        model.held -= len(gone)
        model.dropped += len(gone)
        model.stopped = True

    def check(self):
        """The counts are those of the models, and their sum holds, whatever threads still do."""
        for model, one in zip(self.models, self.statuses(), strict=True):
            parts = ("delivered", "failed", "dropped", "in_flight")
            assert one["read"] == sum(one[part] for part in parts) == model.read
            assert one["in_flight"] == model.held <= model.in_flight
            assert one["dropped"] == model.dropped
            failed = [n for n in model.taken if model.script[n] != GOOD]
            assert (one["failed"], one["delivered"]) == (
                len(failed),
                len(model.taken) - len(failed),
            )

    def statuses(self):
        found = self.runner.status()["sources"]
        return [found[one.name] for one in self.models]

    def to_the_end(self):
        while True:
            if self.can_take():
                self.take()
            elif self.running:
                self.finish(0)
            elif self.can_step():
                self.step()
            else:
                break
            self.check()
        assert list(self.loop) == []
        for model, one in zip(self.models, self.statuses(), strict=True):
            assert not model.order
            if not model.stopped:
                assert one["state"] == "ended"
            elif model.number < len(model.script):
                assert one["state"] == "stopped"
            if not (model.latest or model.stopped):
                assert model.taken == list(range(len(model.script)))

    def leave(self):
        """Leave the loop in the midst of everything: what nobody has taken is dropped."""
        self.clock.free()
        self.network.free()
        self.loop.close()
        self.runner.close()
        for model, one in zip(self.models, self.statuses(), strict=True):
            failed = sum(model.script[n] != GOOD for n in model.taken)
            assert one["read"] >= model.read  # what is dropped makes room, until the source stops
            assert (one["failed"], one["delivered"]) == (failed, len(model.taken) - failed)
            assert one["dropped"] == one["read"] - len(model.taken)
            assert one["in_flight"] == 0

    def close(self):
        self.clock.free()
        self.network.free()
        self.runner.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("headrace-vision-read")]


SOURCES = st.lists(
    st.tuples(
        st.lists(st.sampled_from([GOOD, GOOD, GOOD, BROKEN, NO_PICTURE]), min_size=1, max_size=9),
        st.booleans(),
        st.integers(1, 4),
        st.sampled_from([5, 7, 11]),
    ),
    min_size=1,
    max_size=4,
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "step", "finish", "take", "stop"]), st.integers(0, 3)
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(SOURCES, st.integers(1, 3), st.integers(1, 3), EVENTS, st.booleans())
def test_a_runner_does_what_its_model_does(sources, most, instances, events, leaves):
    case = Case(sources, most, instances)
    try:
        case.check()
        for event, number in events:
            if event == "step" and case.can_step():
                case.step()
            elif event == "finish" and case.running:
                case.finish(number)
            elif event == "take" and case.can_take():
                case.take()
            elif event == "stop" and number < len(sources) and not case.models[number].stopped:
                case.stop(number)
            case.check()
        if leaves:
            case.leave()
        else:
            case.to_the_end()
    finally:
        case.close()


def test_the_model_drops_and_waits_where_it_should():
    """The test above would say nothing if its cases never came to where frames are dropped and readers wait."""
    case = Case([([GOOD] * 8, True, 2, 5), ([GOOD] * 8, False, 2, 7)], 1, 1)
    try:
        for _ in range(9):
            case.step()
        live, file = case.models
        assert (live.dropped, file.dropped) == (6, 0)
        assert file.blocked
        case.to_the_end()
        assert live.taken[-1] == 7
        assert len(live.taken) == 2
    finally:
        case.close()
