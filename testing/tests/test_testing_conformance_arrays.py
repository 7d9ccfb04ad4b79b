"""Backends of arrays: right ones that look odd are certified. The shelf has those that break a rule."""

from __future__ import annotations

import concurrent.futures
import contextvars
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
    """Four numbers, of which twice is asked for."""

    def make_item(self, k):
        return {"data": np.random.default_rng(k).random(4, np.float32)}

    def expected(self, k):
        return self.make_item(k)["data"] + self.make_item(k)["data"]


def kit_of(cls: type, batch: str = "1 or more; a bad item fails alone"):
    """Register a backend under a name of its own; give its conformance class."""
    cls.__doc__ = DOCSTRING.format(batch=batch)
    name = f"{cls.__name__}OfArrays"
    headrace.register(name, cls, replace=True)
    return type(cls.__name__, (ArrayConformance,), {"expression": name})


def certified(**about: str):
    """Have a backend certified below."""

    def decorate(cls: type) -> type:
        KITS.append(kit_of(cls, **about))
        return cls

    return decorate


@certified()
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


@certified()
class HoldsALockForAMoment(Right):
    lock = threading.Lock()

    def one(self, data):
        with self.lock:
            return data * 2


class RemembersAll(Right):
    def init(self, options, context):
        self.known = {}

    def one(self, data):
        return self.known.setdefault(data.tobytes(), data * 2).copy()


@certified()
class RemembersTwoThousand(Right):
    def init(self, options, context):
        self.known = {}

    def one(self, data):
        if len(self.known) == 2000:
            del self.known[next(iter(self.known))]
        return self.known.setdefault(data.tobytes(), data * 2).copy()


REMEMBERS = {"RemembersAll": kit_of(RemembersAll), "RemembersTwoThousand": KITS[-1]}


class IgnoresItsOption(Right):
    class Options(headrace.Options):
        multiplier: float = Field(2.0, description="By what numbers are multiplied (no unit).")


@certified()
class TellsAllInItsError(Right):
    def read(self, request):
        try:
            return super().read(request)
        except InputError:
            got = repr(request.get("data")) * 1000
            raise InputError(key="data", expected="float32 [4]", got=got) from None


@certified()
class MakesAPoolPerBatch(Right):
    # The threads of a pool end when the next one takes its place.

    def forward(self, batch):
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        results = list(self.pool.map(lambda request: self.read(request) * 2, batch))
        for request, result in zip(batch, results, strict=True):
            request["result"] = result


@certified()
class ClosesSlowly(Right):
    def close(self):
        time.sleep(0.02)


@certified()
class ImportsLate(Right):
    def one(self, data):
        import sqlite3  # noqa: F401
        import xml.dom.minidom  # noqa: F401

        return data * 2


@certified()
class TakesTheSquareOfABatch(Right):
    def forward(self, batch):
        time.sleep(1e-6 * len(batch) ** 2)
        return super().forward(batch)


@certified()
class StaysOnTheHost(Right):
    # Whatever `context.device` says.
    pass


@certified(batch="1")
class OneAtATime(Right):
    max = 1


@certified(batch="4")
class AlwaysFour(Right):
    min = max = 4


@certified()
class AnswersByNone(Right):
    def forward(self, batch):
        outcomes = super().forward(batch)
        return outcomes if any(outcomes) else None


@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.__name__)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_right_backend_is_certified(kit):
    before = settings()
    try:
        with ConformanceRun(kit) as run:
            found = contextvars.copy_context().run(run.certificate)
        assert {v.id: v.detail for v in found.rules if not v.good} == {}
    finally:
        restore(before)


def test_an_option_of_a_class_without_init_is_told():
    with ConformanceRun(kit_of(IgnoresItsOption)) as run:
        assert run.verdict("options-used").outcome == "failed"


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
    with ConformanceRun(REMEMBERS[word], share=0.2) as run:
        verdict = contextvars.copy_context().run(run.verdict, "requests-released")
    assert verdict.outcome == outcome
