"""Requests meet the same in an exchange, and at a model that they build, as at a plain model: a program runs at each."""

from __future__ import annotations

import _thread
import asyncio
import signal
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import dataclass

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as some

import headrace
from headrace.errors import InputError, RequestsFailed
from headrace_models import Exchange, Models
from headrace_testing import virtual_time

WAYS = ("call", "submit", "list", "futures", "list_async", "call_async", "await", "soon")
LISTS = ("list", "futures", "list_async")
DOES = ("answers", "fails", "refuses", "no result", "changes keys", "calls itself")


@dataclass(frozen=True)
class Step:
    """One request, or a list of three, of a program.

    Attributes:
        at_ms: When it is sent.
        how: How it is sent.
        does: What the model does with it.
        ms: How long that takes.
        timeout_ms: Its deadline. None for none.
        twice: Whether the list has the same dict twice.
        look_ms: After so long its future is asked for all that it tells, and cancelled. None: it is waited for.
    """

    at_ms: int
    how: str = "call"
    does: str = "answers"
    ms: int = 3
    timeout_ms: int | None = None
    look_ms: int | None = None
    twice: bool = False


STEPS = some.builds(
    Step,
    at_ms=some.integers(0, 20),
    how=some.sampled_from(WAYS),
    does=some.sampled_from(DOES),
    ms=some.integers(1, 6),
    timeout_ms=some.none() | some.integers(1, 12),
    look_ms=some.none() | some.integers(0, 8),
    twice=some.booleans(),
)


class Acts(headrace.Backend):
    """Does what ``data`` says. A new one does so at once, calls nobody, and may fail each request."""

    class Options(headrace.Options):
        role: str = "old"

    max = 64

    def init(self, options, context):
        self.role = options.role

    def forward(self, batch):
        time.sleep(max(one["data"]["ms"] for one in batch) / 1000 if self.role == "old" else 0)
        return [self.act(request) for request in batch]

    def act(self, request):
        does = request["data"]["does"]
        if does == "fails" or self.role == "fails":
            return ValueError("it fails")
        if does == "refuses":
            return InputError("it is refused", key="data")
        if does == "calls itself" and self.role == "old":
            inner = {"data": {"ms": 1, "does": "answers"}}
            request["result"] = served[0]("m", inner)["result"]
        if does == "changes keys":
            request["more"] = [1]
            request["list"] = [*request["list"], 2]
            del request["left"]
        if does != "no result":
            request["result"] = request["data"]["ms"], request.get("context"), request.get("list")
        return None


served: list[Models] = []
CONFIG = {"backend": "Acts", "max": 2}


@pytest.fixture(autouse=True)
def acts():
    headrace.register("Acts", Acts, replace=True)


def models_of(kind, clock, instances):
    """Return models whose requests run in the old model of an exchange, or in a model that the first of them builds."""
    config = {**CONFIG, "instance_num": instances}
    models = Models({"m": config}, preload=kind != "lazy", clock=clock)
    if kind in ("shadow", "canary", "failing canary"):
        role, compare = ("fails" if "failing" in kind else "new"), kind.rpartition(" ")[2]
        new = {"backend": f"Acts(role={role})", "max": 64, "instance_num": 2}
        models.update("m", new, exchange=Exchange(share=1.0, requests=10**6, compare=compare))
    return models


def sent(step, number):
    data = {"ms": step.ms + number / 16, "does": step.does}
    return {"data": data, "list": [number], "left": True, "context": {"from": number}}


class Run:
    """Runs a program with some models, and notes all that its clients see."""

    def __init__(self, kind, steps, clock, instances):
        self.clock, self.began = clock, clock()
        self.models = models_of(kind, clock, instances)
        served[:] = [self.models]
        self.seen = [[] for _ in steps]
        threads = [
            threading.Thread(target=self.send, args=(step, number))
            for number, step in enumerate(steps)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.note_counts()
        self.models.close()

    def note_counts(self):
        """Note what the node has counted: for the caller of a probe it is the same pipeline."""
        with self.models.lease("m") as pipe:
            node = pipe.stats()["nodes"]["main"]
        self.seen.append([node[key] for key in ("submitted", "ok", "failed", "cancelled")])

    def note(self, number, *what):
        self.seen[number].append(what)

    def send(self, step, number):
        time.sleep((step.at_ms + number / 64) / 1000)
        requests = [sent(step, number) for _ in range(3 if step.how in LISTS else 1)]
        if step.twice and step.how in LISTS[:2]:
            requests[1] = requests[0]
        timeout = None if step.timeout_ms is None else (step.timeout_ms + 0.301) / 1000
        look_s = None if step.look_ms is None else (step.look_ms + 0.157) / 1000
        try:
            getattr(self, {"list": "call"}.get(step.how, step.how))(
                number, requests, timeout, look_s
            )
        except BaseException as error:
            self.note(number, *told(error))
            requests = [] if getattr(error, "abandoned", False) else requests
        self.note(number, "dicts", [sorted(map(str, one.items())) for one in requests])

    def call(self, number, requests, timeout, look_s):
        given = requests if len(requests) > 1 else requests[0]
        answer = self.models("m", given, timeout=timeout)
        self.note(number, "answered", answer is given)

    def submit(self, number, requests, timeout, look_s):
        self.look(number, self.models.submit("m", requests[0], timeout=timeout), look_s, requests)

    def futures(self, number, requests, timeout, look_s):
        futures = self.models.submit("m", requests, timeout=timeout)
        for future in futures:
            self.look(number, future, look_s, requests)

    def look(self, number, future, look_s, requests):
        """Ask a future for all that it tells, now and at its end."""
        called = []
        future.add_done_callback(lambda done: called.append(done is future))
        if look_s is not None:
            time.sleep(look_s)
            answers = future.running(), future.done(), future.cancel(), future.cancelled()
            self.note(number, "looked", *answers)
        try:
            self.note(number, "answered", any(future.result() is one for one in requests))
        except (Exception, CancelledError) as error:
            self.note(number, *told(error))
        time.sleep(0)
        self.note(number, future.running(), future.done(), future.cancelled(), called)

    def call_async(self, number, requests, timeout, look_s):
        coroutine = self.models.call_async("m", requests[0], timeout=timeout)
        answer = asyncio.run(asyncio.wait_for(coroutine, look_s))
        self.note(number, "answered", answer is requests[0])

    def list_async(self, number, requests, timeout, look_s):
        async def call():
            task = asyncio.ensure_future(self.models.call_async("m", requests, timeout=timeout))
            if look_s is not None:
                asyncio.get_running_loop().call_later(look_s, task.cancel)
            try:
                return await task
            except asyncio.CancelledError as error:
                self.note(number, "abandoned", abandoned_of(error))
                raise

        try:
            self.note(number, "answered", asyncio.run(call()) is requests)
        except asyncio.CancelledError:
            self.note(number, "cancelled")

    def await_(self, number, requests, timeout, look_s):
        async def wait():
            return await self.models.submit("m", requests[0], timeout=timeout)

        answer = asyncio.run(asyncio.wait_for(wait(), look_s))
        self.note(number, "answered", answer is requests[0])

    def soon(self, number, requests, timeout, look_s):
        async def begin():
            done = asyncio.get_running_loop().create_future()
            call = pipe.call_soon(requests[0], done.set_result, timeout=timeout)
            try:
                ended = await asyncio.wait_for(asyncio.shield(done), look_s)
            except asyncio.TimeoutError:
                self.note(number, "cancelled", call.cancel())
                raise
            self.note(number, "told", ended is call, ended.request is requests[0])
            if ended.error is not None:
                raise ended.error

        with self.models.lease("m") as pipe:
            asyncio.run(begin())


setattr(Run, "await", Run.await_)  # the name of a way


def abandoned_of(error):
    """Return what a cancel tells of the dict: Python 3.10 raises another error of it."""
    found = getattr(error, "abandoned", None)
    return abandoned_of(error.__context__) if found is None and error.__context__ else found


def told(error):
    """Return all that an error tells its caller."""
    if isinstance(error, RequestsFailed):
        return "failed", [None if one is None else told(one) for one in error.errors]
    cause = error.__cause__
    about = [getattr(error, name, None) for name in ("code", "node", "key", "abandoned")]
    return type(error).__name__, str(error), about, type(cause).__name__, str(cause)


def kinds_of(steps):
    """Return where a program sees the same. Where the old model has no answer, that of a new one is another outcome."""
    alike = all(
        (step.timeout_ms, step.look_ms, step.twice, step.does in ("calls itself", "fails"))
        == (None, None, False, False)
        for step in steps
    )
    return ["shadow", "failing canary", "lazy", *(["canary"] if alike else [])]


@pytest.mark.parametrize("instances", [1, 2])
@settings(deadline=None, max_examples=25)
@given(steps=some.lists(STEPS, min_size=1, max_size=6))
@example([Step(0, "call"), Step(1, "submit", look_ms=0), Step(1, "submit", look_ms=6)])
@example([Step(0, how, does) for how, does in zip(WAYS, DOES, strict=False)])
@example([Step(0, "list", "fails"), Step(0, "futures", "calls itself", look_ms=1)])
@example([Step(0, "list", "changes keys", twice=True), Step(1, "futures", twice=True, look_ms=2)])
@example([Step(0, "list_async", look_ms=2), Step(1, "list_async", "fails")])
def test_a_program_sees_the_same_everywhere(instances, steps):
    circles = [step for step in steps if step.does == "calls itself" and step.how in LISTS]
    assume(
        instances == 1 or not circles
    )  # where both run one, it is a matter of time who is refused
    kinds = kinds_of(steps)
    with virtual_time() as clock:
        plain, *others = [Run(kind, steps, clock, instances).seen for kind in ["plain", *kinds]]
    for kind, seen in zip(kinds, others, strict=True):
        assert seen == plain, kind


@pytest.fixture
def interrupts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    yield
    signal.signal(signal.SIGINT, before)


class Interrupted(Run):
    """The main thread sends a request, behind another one or not, and Ctrl-C comes while it waits."""

    def __init__(self, kind, clock, how, *, busy):
        self.clock, self.began, self.seen = clock, clock(), [[], []]
        self.models = models_of(kind, clock, 1)
        before = threading.Thread(target=self.send, args=(Step(0, ms=20), 1))
        ends = threading.Thread(target=self.interrupt)
        if busy:
            before.start()
            time.sleep(0.001)
        ends.start()
        requests = [sent(Step(0, ms=10), 0)]
        try:
            getattr(self, how)(0, requests, None, None)
        except KeyboardInterrupt as interrupt:
            self.note(0, "interrupted", getattr(interrupt, "abandoned", None))
        ends.join()
        if busy:
            before.join()
        time.sleep(0.1)  # what was left to a backend has ended
        self.note(0, [sorted(map(str, one.items())) for one in requests])
        self.note(0, self.models("m", sent(Step(0), 0))["result"])
        self.note_counts()
        self.models.close()

    def interrupt(self):
        time.sleep(0.005)
        _thread.interrupt_main()


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("busy", [False, True], ids=["its batch runs", "it waits"])
@pytest.mark.parametrize("how", ["call", "submit"])
@pytest.mark.parametrize("kind", ["shadow", "failing canary", "canary", "lazy"])
def test_ctrl_c_ends_the_same_everywhere(kind, how, busy):
    with virtual_time() as clock:
        plain = Interrupted("plain", clock, how, busy=busy).seen
        assert plain[0][0][0] == "interrupted"
        assert Interrupted(kind, clock, how, busy=busy).seen == plain
