"""Programs whose interleavings are explored: who has ended is let go of where requests wait for others."""

from __future__ import annotations

import logging
import threading
import time
import weakref

import headrace
from headrace.errors import BackendError, DeadlineExceededError
from headrace_testing.interleavings import check, settle

logging.disable(logging.CRITICAL)


class Work:
    """The data of a request, which takes a millisecond, or waits at the gate."""

    def __init__(self, name: str) -> None:
        self.name = name


class WorkRuns(headrace.Backend):
    """Runs one batch at a time, in all nodes."""

    reads = ("data",)
    max = 2

    def forward(self, batch):
        running.append(self)
        check(len(running) == 1, "two batches run at a time")
        _pass([request["data"].name for request in batch])
        running.remove(self)
        for request in batch:
            ran.append(request["data"].name)
            request["result"] = request["data"].name


class NameRuns(headrace.Backend):
    """Gives the name in capitals. The first run passes the gate, and may fail then."""

    class Options(headrace.Options):
        fails: bool = False

    reads = ("data",)

    def init(self, options, context):
        self.fails = options.fails

    def forward(self, batch):
        is_first = not ran
        ran.extend(request["data"] for request in batch)
        _pass(["first" if is_first else ""])
        if is_first and self.fails:
            raise ValueError("the first fails")
        for request in batch:
            request["result"] = request["data"].upper()


def _pass(names):
    """Wait at the gate where the first is among them, else for a millisecond."""
    if "first" in names:
        gate.wait()
    else:
        time.sleep(0.001)


class Note:
    """An object of a request, which tells whether somebody still has it."""


gate = threading.Event()
running: list[object] = []
ran: list[str] = []
headrace.register("WorkRuns", WorkRuns)
headrace.register("NameRuns", NameRuns)
LIMITED = headrace.PipelineConfig.load(
    {
        name: {"backend": "Concurrency(gpu,most=1)[WorkRuns]", "instance_num": 2}
        for name in ("one", "other")
    }
)
ONCE, ONCE_FAILS = (
    headrace.PipelineConfig.load({"backend": f"Once[NameRuns(fails={fails})]", "instance_num": 3})
    for fails in ("false", "true")
)


def _late(pipe, request, timeout):
    """Send a request whose time is over before it could run; return what tells whether its dict is let go."""
    request["note"] = note = Note()
    seen = weakref.ref(note)
    del note
    try:
        pipe(request, timeout=timeout)
    except DeadlineExceededError:
        pass
    else:
        check(False, "it should be late")
    return seen


def _threads(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def concurrency():
    """Late and cancelled requests, at both nodes, leave what they waited for, before the batch that they waited for ends."""
    seen, answers = [], []

    def late(node):
        seen.append(_late(pipe, {"data": Work("late"), "node_name": node}, 0.005))

    def cancelled(node):
        note = Note()
        seen.append(weakref.ref(note))
        future = pipe.submit({"data": Work("cancelled"), "node_name": node, "note": note})
        del note
        while not future.cancel():  # it comes to wait just now
            time.sleep(0.001)

    def live(node):
        answers.append(pipe({"data": Work(node), "node_name": node})["result"])

    with headrace.pipe(LIMITED) as pipe:
        first = pipe.submit({"data": Work("first"), "node_name": "one"})
        settle(0)
        threads = _threads(
            *(lambda node=node: live(node) for node in ("one", "other")),
            *(lambda node=node: late(node) for node in ("one", "one", "other", "other")),
            *(lambda node=node: cancelled(node) for node in ("one", "other")),
        )
        for thread in threads[2:]:
            thread.join()
        settle(0.001)
        about = pipe.stats()["concurrency"]["gpu"]
        check(about["waiting"] == 2, lambda: f"{about} where two wait")
        check(not any(note() for note in seen), "the dict of one who has ended is kept")
        gate.set()
        for thread in threads:
            thread.join()
        first.result()
        settle()
        about = pipe.stats()["concurrency"]["gpu"]
        check((about["running"], about["waiting"]) == (0, 0), lambda: f"at the end {about}")
        check(sorted(answers) == ["one", "other"], lambda: f"answers {answers}")
        check("late" not in ran and "cancelled" not in ran, lambda: f"{ran} have run")


def concurrency_ends_as_called():
    """Requests whose time is over in the moment in which they are called: the next one is called in their place."""
    outcomes = []

    def ask(name, timeout):
        try:
            outcomes.append(
                pipe({"data": Work(name), "node_name": name}, timeout=timeout)["result"]
            )
        except DeadlineExceededError:
            check(timeout is not None, "one without a deadline is late")
            outcomes.append("late")

    with headrace.pipe(LIMITED) as pipe:
        first = pipe.submit({"data": Work("first"), "node_name": "one"})
        settle(0)
        asked = [("one", 0.005), ("one", None), ("other", 0.005), ("other", 0.005), ("one", 0.005)]
        threads = _threads(*(lambda a=a: ask(*a) for a in asked))
        time.sleep(0.005)
        gate.set()
        for thread in threads:
            thread.join()
        first.result()
        settle()
        about = pipe.stats()["concurrency"]["gpu"]
        check((about["running"], about["waiting"]) == (0, 0), lambda: f"at the end {about}")
        check(len(outcomes) == len(asked), lambda: f"outcomes {outcomes}")


def once():
    """Late requests leave the run that they waited for, and the others get its answer."""
    seen, answers = [], []

    def late():
        seen.append(_late(pipe, {"data": "x"}, 0.005))

    def live():
        answers.append(pipe({"data": "x"})["result"])

    with headrace.pipe(ONCE) as pipe:
        first = pipe.submit({"data": "x"})
        settle(0)
        threads = _threads(live, late, late, live)
        for thread in threads[1:3]:
            thread.join()
        settle(0.001)
        check(not any(note() for note in seen), "the dict of one who has ended is kept")
        gate.set()
        for thread in threads:
            thread.join()
        settle()
        check([*answers, first.result()["result"]] == ["X"] * 3, lambda: f"answers {answers}")
        check(ran == ["x"], lambda: f"{ran} have run")


def once_ends_as_called():
    """The run that all wait for fails. Requests whose time is over as it ends, or as they are to run: the next one runs."""
    outcomes = []

    def ask(timeout):
        try:
            outcomes.append(pipe({"data": "x"}, timeout=timeout)["result"])
        except DeadlineExceededError:
            check(timeout is not None, "one without a deadline is late")
            outcomes.append("late")
        except BackendError:  # the first has failed in time
            outcomes.append("failed")

    with headrace.pipe(ONCE_FAILS) as pipe:
        first = pipe.submit({"data": "x"}, timeout=0.01)
        settle(0)
        threads = _threads(*(lambda t=t: ask(t) for t in (0.01, None, 0.01, None, 0.011)))
        time.sleep(0.01)
        gate.set()
        for thread in threads:
            thread.join()
        first.exception()
        settle()
        check(len(outcomes) == 5, lambda: f"outcomes {outcomes}")
        node = pipe.stats()["nodes"]["main"]
        check(node["waiting"] == 0, lambda: f"at the end {node}")
