"""Backends of arrays with the faults of real ones, and right ones that look odd: each is judged rightly."""

from __future__ import annotations

import concurrent.futures
import contextvars
import ctypes
import os
import random
import threading
import time

import numpy as np
import pytest
from pydantic import Field

import headrace
from headrace.errors import InputError
from headrace_testing import BackendConformance
from headrace_testing.conformance import ConformanceRun
from headrace_testing.conformance.settings import restore, settings

pytestmark = pytest.mark.slow

KITS: list[type[BackendConformance]] = []
DOCSTRING = """Twice some numbers.

Reads:
    data: ``float32 [4]``.
Writes:
    result: ``float32 [4]``, a new array.
Batch:
    {batch}

Raises:
    InputError: ``data`` is missing or something else.
Source:
    Own.
"""


class ArrayConformance(BackendConformance):
    """Four numbers, of which twice is asked for.

    Attributes:
        broken: The rule that must refuse the backend; None for one that is certified.
    """

    broken: str | None = None

    def make_item(self, k):
        return {"data": np.random.default_rng(k).random(4, np.float32)}

    def expected(self, k):
        return self.make_item(k)["data"] + self.make_item(k)["data"]


def judged(broken: str | None = None, batch: str = "1 or more; a bad item fails alone"):
    def decorate(cls: type) -> type:
        cls.__doc__ = DOCSTRING.format(batch=batch)
        name = f"{cls.__name__}OfArrays"
        headrace.register(name, cls, replace=True)
        members = {"expression": name, "broken": broken}
        KITS.append(type(cls.__name__, (ArrayConformance,), members))
        return cls

    return decorate


@judged()
class Right(headrace.Backend):
    rerun = True

    def read(self, request):
        data = request.get("data")
        if not isinstance(data, np.ndarray) or data.dtype != np.float32 or data.shape != (4,):
            raise InputError(key="data", expected="float32 [4]", got=type(data).__name__)
        return data

    def one(self, data):
        return data * 2

    def forward(self, batch):
        outcomes = []
        for request in batch:
            try:
                request["result"] = self.one(self.read(request))
                outcomes.append(None)
            except InputError as error:
                outcomes.append(error)
        return outcomes

    def reversed_if(self, batch, wrong):
        """Give results in the order of requests, or backwards."""
        results = [self.read(request) * 2 for request in batch]
        for request, result in zip(batch, results[::-1] if wrong else results, strict=True):
            request["result"] = result


# Instances that meet.


@judged("instances-agree")
class SharesMemory(Right):
    shared = np.zeros(4, np.float32)

    def one(self, data):
        np.multiply(data, 2, out=self.shared)
        time.sleep(0)
        return self.shared.copy()


@judged("instances-agree")
class SharesMemoryWithinALine(Right):
    shared = np.zeros(4, np.float32)

    def one(self, data):
        return np.multiply(data, 2, out=self.shared) is None or self.shared.copy()


@judged("instances-agree")
class SharesAModel(Right):
    model: dict[str, np.ndarray] = {}  # noqa: RUF012

    def one(self, data):
        self.model["input"] = data
        for _ in range(50):
            data = data + 0
        return self.model["input"] * 2


@judged("instances-help")
class ComputesUnderOneLock(Right):
    lock = threading.Lock()

    def forward(self, batch):
        with self.lock:
            time.sleep(0.002)  # stands for a computation
            return super().forward(batch)


@judged()
class HoldsALockForAMoment(Right):
    lock = threading.Lock()

    def one(self, data):
        with self.lock:
            return data * 2


@judged("threads-in-turn")
class KnowsItsThread(Right):
    def init(self, options, context):
        self.thread = threading.get_ident()

    def one(self, data):
        if threading.get_ident() != self.thread:
            raise RuntimeError("another thread")
        return data * 2


# Memory.


@judged("inputs-kept")
class WritesIntoItsInput(Right):
    def one(self, data):
        return np.add(data, data, out=data) if data.flags.writeable else data * 2


@judged("results-kept")
class UsesItsOutputAgain(Right):
    def init(self, options, context):
        self.out = np.zeros((512, 4), np.float32)

    def forward(self, batch):
        for k, request in enumerate(batch):
            request["result"] = np.multiply(self.read(request), 2, out=self.out[k])


@judged("batch-equals-items")
class RemembersByAddress(Right):
    def init(self, options, context):
        self.known = {}

    def one(self, data):
        return self.known.setdefault(id(data), data * 2).copy()


@judged("requests-released")
class RemembersAll(Right):
    def init(self, options, context):
        self.known = {}

    def one(self, data):
        return self.known.setdefault(data.tobytes(), data * 2).copy()


@judged("requests-released")
class KeepsBytes(Right):
    kept: list[bytes] = []  # noqa: RUF012

    def one(self, data):
        self.kept.append(bytes(10_000))
        return data * 2


@judged("requests-released")
class LosesMemoryOfC(Right):
    def one(self, data):
        library = ctypes.CDLL(None)
        library.malloc.restype = ctypes.c_void_p
        ctypes.memset(library.malloc(20_000), 1, 20_000)
        return data * 2


@judged()
class RemembersTwoThousand(Right):
    def init(self, options, context):
        self.known = {}

    def one(self, data):
        if len(self.known) == 2000:
            del self.known[next(iter(self.known))]
        return self.known.setdefault(data.tobytes(), data * 2).copy()


# Right answers.


@judged("batch-equals-items")
class LooksAtNeighbours(Right):
    def forward(self, batch):
        data = np.stack([self.read(request) for request in batch])
        mean = data.mean(0) if len(batch) > 1 else 0
        for request, one in zip(batch, data, strict=True):
            request["result"] = one * 2 + mean * np.float32(1e-3)


@judged("order-kept")
class MixesUp17To31(Right):
    def forward(self, batch):
        self.reversed_if(batch, 17 <= len(batch) < 32)


@judged("order-kept")
class MixesUpHundreds(Right):
    def forward(self, batch):
        self.reversed_if(batch, len(batch) > 100)


@judged("life-cycle-again")
class CountsRequests(Right):
    count = 0

    def one(self, data):
        self.count += 1
        return data * 2 + np.float32(self.count * 1e-4)


@judged("same-later")
class IsWrongLater(Right):
    count = 0

    def one(self, data):
        type(self).count += 1
        return data * (2 if self.count < 20_000 else 3)


@judged("right-answers")
class ThreeTimes(Right):
    def one(self, data):
        return data * 3


@judged("right-answers")
class LastIsNaN(Right):
    def one(self, data):
        return np.where(np.arange(4) == 3, np.float32("nan"), data * 2).astype(np.float32)


@judged("options-used")
class IgnoresItsOption(Right):
    class Options(headrace.Options):
        multiplier: float = Field(2.0, description="By what numbers are multiplied (no unit).")


# Requests.


@judged("missing-key")
class TakesAnything(Right):
    def read(self, request):
        try:
            return np.asarray(request.get("data"), np.float32).reshape(4)
        except (TypeError, ValueError):
            return np.zeros(4, np.float32)


@judged("wrong-type")
class Converts(Right):
    def read(self, request):
        try:
            return np.resize(np.asarray(request["data"], np.float32), 4)
        except (KeyError, TypeError, ValueError):
            raise InputError(key="data", expected="numbers", got="something else") from None


@judged("writes")
class WritesMore(Right):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in batch:
            request["more"] = 1
        return outcomes


@judged("writes")
class TakesKeysAway(Right):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in batch:
            for key in request.keys() - {"data", "result"}:
                del request[key]
        return outcomes


@judged("missing-key")
class SwallowsEverything(Right):
    def forward(self, batch):
        for request in batch:
            try:
                request["result"] = self.one(self.read(request))
            except BaseException:
                request["result"] = None


@judged()
class TellsAllInItsError(Right):
    def read(self, request):
        try:
            return super().read(request)
        except InputError:
            got = repr(request.get("data")) * 1000
            raise InputError(key="data", expected="float32 [4]", got=got) from None


# The process.


@judged("process-state-kept")
class Prints(Right):
    def one(self, data):
        print("data", data.sum())  # noqa: T201 - its fault
        return data * 2


@judged("process-state-kept")
class SetsTheEnvironment(Right):
    def init(self, options, context):
        os.environ["THREADS_OF_ARRAYS"] = "1"


@judged("process-state-kept")
class Seeds(Right):
    def one(self, data):
        np.random.seed(0)
        random.seed(0)
        return data * 2


@judged("thread-state-kept")
class HidesErrors(Right):
    def init(self, options, context):
        np.seterr(all="ignore")


# Right ones that look odd.


@judged()
class MakesAPoolPerBatch(Right):
    # The threads of a pool end when the next one takes its place.

    def forward(self, batch):
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        results = list(self.pool.map(lambda request: self.read(request) * 2, batch))
        for request, result in zip(batch, results, strict=True):
            request["result"] = result


@judged()
class ClosesSlowly(Right):
    def close(self):
        time.sleep(0.02)


@judged()
class ImportsLate(Right):
    def one(self, data):
        import sqlite3  # noqa: F401
        import xml.dom.minidom  # noqa: F401

        return data * 2


@judged()
class TakesTheSquareOfABatch(Right):
    def forward(self, batch):
        time.sleep(1e-6 * len(batch) ** 2)
        return super().forward(batch)


@judged()
class StaysOnTheHost(Right):
    # Whatever `context.device` says.
    pass


@judged(batch="1")
class OneAtATime(Right):
    max = 1


@judged(batch="4")
class AlwaysFour(Right):
    min = max = 4


@judged()
class AnswersByNone(Right):
    def forward(self, batch):
        outcomes = super().forward(batch)
        return outcomes if any(outcomes) else None


@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.__name__)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_backend_is_judged_rightly(kit):
    before, numpy_errors = settings(), np.geterr()
    try:
        with ConformanceRun(kit) as run:
            if kit.broken is None:
                found = contextvars.copy_context().run(run.certificate)
                assert {v.id: v.detail for v in found.rules if not v.good} == {}
            else:
                verdict = contextvars.copy_context().run(run.verdict, kit.broken)
                if kit.__name__ == "RemembersByAddress" and verdict.outcome == "blocked":
                    # Which rule first meets an address that comes again is chance.
                    verdict = contextvars.copy_context().run(run.verdict, verdict.blocked_by)
                assert verdict.outcome == "failed", verdict
    finally:
        restore(before)
        np.seterr(**numpy_errors)


def test_there_are_40_and_each_is_judged_once():
    assert len({kit.expression for kit in KITS}) == len(KITS) == 40


@pytest.mark.parametrize(("growth", "outcome"), [(0, "failed"), (2000, "not_judged")])
def test_growth_is_judged_where_a_thousand_requests_are_of_about_one_size(growth, outcome):
    """The backend keeps all of them, in both."""

    class Growing(ArrayConformance):
        expression = "RemembersAllOfArrays"

        def make_item(self, k):
            return {**super().make_item(k), "more": bytes(growth * k)}

    with ConformanceRun(Growing) as run:
        verdict = contextvars.copy_context().run(run.verdict, "requests-released")
    assert verdict.outcome == outcome
    assert outcome == "failed" or verdict.detail.startswith("only 34 different requests")


@pytest.mark.parametrize(
    ("word", "outcome"), [("RemembersTwoThousand", "passed"), ("RemembersAll", "failed")]
)
def test_shorter_rules_say_the_same_of_what_is_kept(word, outcome):
    """The first of them keeps more than a fifth of the requests of a window."""
    (kit,) = (kit for kit in KITS if kit.__name__ == word)
    with ConformanceRun(kit, share=0.2) as run:
        verdict = contextvars.copy_context().run(run.verdict, "requests-released")
    assert verdict.outcome == outcome
