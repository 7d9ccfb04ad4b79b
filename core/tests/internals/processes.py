"""The adapter between tests and the word ``Process``: its transport is a fake, and no process is started."""

from __future__ import annotations

import pickle
import threading
import time
import types

from headrace import isolation as running
from headrace.isolation import Liveness, Restarts
from headrace_process.process import Process
from headrace_workers import exchange as exchanges
from headrace_workers import supervisor
from headrace_workers.apart import Siblings
from headrace_workers.far import run
from headrace_workers.packing import unpack
from headrace_workers.supervisor import Supervisor
from internals.scheduling import DONE

ABOUT = {"min": 1, "max": 4, "needs": ("data",), "reads": ("data",), "keys": ("data",)}


def clock_of_exchanges(clock):
    """Let exchanges and supervisors read this clock; None for that of the machine."""
    told = time if clock is None else types.SimpleNamespace(monotonic=clock)
    exchanges.time = supervisor.time = running.time = told


def processes_of(model, count, *about):
    """Return ``count`` processes that restart one for another."""
    siblings = Siblings()
    siblings._changed = HandCondition(model)
    return [process_of(model, index, *about, siblings) for index in range(count)]


class HandLink:
    """The way to a process that does what the model's script says."""

    def __init__(self, model, child):
        self.model, self.child = model, child
        self.awaits, self.again = False, []

    def begin(self):
        """Nothing is put beside a message here."""

    def send(self, message, *, awaits=False):
        if self.child.dead:
            raise EOFError
        self.number, *self.message = pickle.loads(pickle.dumps(message))
        self.batch, _ = unpack(self.message[0], self)
        self.begun = False
        self.awaits = awaits

    def receive(self, timeout_s=None):
        if self.again and not self.begun:
            return self.again.pop()  # an earlier answer, once more
        self.begun = True
        model, numbers = self.model, [request["data"][1] for request in self.batch]
        for number in numbers:
            model.runs[number] = model.runs.get(number, 0) + 1
        done = {model.numbers[entry] for entry in model.made if entry.state == DONE}
        model.over |= done.intersection(numbers)
        if any(request["data"][0] == "poison" for request in self.batch):
            self.die(numbers)
        script, model.script = model.script, []
        for move, how in script:
            if move == "late":
                if timeout_s is not None and how >= timeout_s:
                    self.overdue(timeout_s, numbers)
                model.let_pass(how)
            elif move == "hang":
                if timeout_s is None:
                    self.die(numbers)  # somebody kills it by hand
                self.overdue(timeout_s, numbers)
            elif move == "twice":
                self.again.append(None)
            elif move == "lost":  # it was never begun there, and nobody says so
                for number in numbers:
                    model.runs[number] -= 1
                if timeout_s is None:
                    self.die(numbers)
                self.overdue(timeout_s, numbers)
            elif move == "die":
                self.die(numbers)
            elif move == "meanwhile":
                how(model)
            if self.child.dead:  # somebody else has ended it
                model.died(numbers)
                raise EOFError
        self.awaits = False
        answer = pickle.dumps((self.number, 0, *run(model.far, *self.message, self)))
        self.again = [pickle.loads(answer) for _ in self.again]
        return pickle.loads(answer)

    def overdue(self, timeout_s, numbers):
        self.model.let_pass(timeout_s)
        self.model.died(numbers)
        raise TimeoutError

    def die(self, numbers):
        self.model.died(numbers)
        self.child.kill()
        raise EOFError

    def end(self):
        """The end of the other process is told by hand."""


class HandChild:
    """A process that is none."""

    count = 0

    def __init__(self, model, supervisor):
        HandChild.count += 1
        self.supervisor = supervisor
        self.about = {**ABOUT, "process": HandChild.count, "tree": {}}
        self.link = HandLink(model, self)
        self.ended = threading.Event()
        self.how, self.dead, self.sent = ("", None), False, 0
        self.part = None

    def kill(self):
        if not self.dead:
            self.dead, self.how = True, ("of signal SIGKILL", None)
            self.supervisor.see_end(self)

    def end(self):
        self.ended.set()

    def wait_reported(self, count):
        """It reports nothing."""

    def close(self):
        assert self.dead


class HandSupervisor(Supervisor):
    """The real one, whose thread is the model's clock.

    Attributes:
        starts: When a process was started again.
    """

    def __init__(self, model, limit, liveness, changed):
        super().__init__("model", None, {}, Restarts(limit), liveness, changed)
        self.model, self.starts = model, []
        self._began(HandChild(model, self))

    def see_end(self, child):
        pause_s = self._left(child, RuntimeError("told to"))
        if pause_s is not None:
            self.model.timer.call_at(self.model.clock() + pause_s, self.start_again)

    def start_again(self):
        if not self.over:
            self.starts.append(self.model.clock())
            self._began(HandChild(self.model, self))

    def child(self):
        while not self.lives and not self.over:
            self.model.let_pass(0.05)  # who waits for it lets time pass
        return super().child()


class HandCondition:
    """Who waits for it lets time pass."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        """Leave."""

    def wait(self):
        self.model.let_pass(0.05)

    def notify_all(self):
        """Who waits looks again anyway."""


def process_of(model, index, limit, rerun, kill_after_ms, siblings):
    """Return a `Process` as ``init`` leaves it, over the fake transport."""
    process = Process()
    process._name, process._node, process._index = "Process", "model", index
    process._liveness, process._whole, process._state = Liveness(), True, "ready"
    process._word = types.SimpleNamespace(children=[types.SimpleNamespace(name="X")])
    process.exchanging, process._siblings = threading.Lock(), siblings
    process._borrower = None
    process.supervisor = HandSupervisor(model, limit, process._liveness, siblings.look)
    process._child = process.supervisor.child()
    process._liveness.killers.append(process.supervisor.kill)
    process.kill_after_s = None if kill_after_ms is None else kill_after_ms / 1000
    process._take(
        {**ABOUT, "rerun": rerun},
        types.SimpleNamespace(measures=False, report=list, name="X"),
    )
    process._note_range()
    siblings.members.append(process)
    return process
