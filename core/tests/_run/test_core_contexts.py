"""Whose context variables `forward` sees: those of its instance, never those of a caller."""

from __future__ import annotations

import decimal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal

import numpy as np
import pytest
from sending import WAYS

import headrace

REQUEST_ID = ContextVar("REQUEST_ID", default="nobody's")

SEVENTH = "0.1428571428571428571428571429"
"""1/7 with the 28 digits that decimal's documentation gives as its default."""

EXPECTED = (SEVENTH, "warn", "nobody's")
"""What code sees that has changed no context variable: numpy's documented default is to warn."""


def what_is_seen():
    return str(Decimal(1) / Decimal(7)), np.geterr()["divide"], REQUEST_ID.get()


@contextmanager
def a_context_of_its_own():
    token = REQUEST_ID.set("mine")
    try:
        with decimal.localcontext() as three, np.errstate(divide="raise"):
            three.prec = 3
            assert what_is_seen() == ("0.143", "raise", "mine")
            yield
            assert what_is_seen() == ("0.143", "raise", "mine")
    finally:
        REQUEST_ID.reset(token)


@headrace.register("Sees")
class Sees(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = what_is_seen()


@headrace.register("SeesInItsThread")
class SeesInItsThread(Sees):
    owns_thread = True


EXPRESSIONS = {
    "plain": {"backend": "Sees"},
    "sequence": {"backend": "S[Identity,Sees]"},
    "own thread": {"backend": "SeesInItsThread"},
    "thread inside": {"backend": "S[Identity,BackgroundThread[Sees]]"},
    "queue inside": {"backend": "Sees", "batching_timeout": 1, "max": 2},
    "named instance": {"backend": "IoC[Sees;S[Identity,Sees]]"},
    "chain": {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "Sees"}},
    "each": {"backend": "Sees", "each": "boxes"},
    "branches": {"global": {"backend": "Sees"}, "a": {"next": "b,c"}, "b": {}, "c": {}},
}


@pytest.mark.parametrize("main", [True, False], ids=["main thread", "other thread"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_forward_sees_no_context_variable_of_its_caller(name, way, main):
    several = {"each": [EXPECTED] * 2, "branches": {"b": EXPECTED, "c": EXPECTED}}
    expected = several.get(name, EXPECTED)
    with headrace.pipe(EXPRESSIONS[name]) as pipe, ThreadPoolExecutor(1) as other:

        def run():
            with a_context_of_its_own():
                return WAYS[way](pipe, {"data": 1, "boxes": [1, 2]})["result"]

        for _ in range(3):  # the first one finds the backend slow, as long as nothing is measured
            assert (run() if main else other.submit(run).result(timeout=60)) == expected


def test_a_process_sees_no_context_variable_of_its_caller(tmp_path):
    (tmp_path / "sees_far.py").write_text(
        "import decimal, headrace\n"
        "@headrace.register('SeesFar')\n"
        "class SeesFar(headrace.Backend):\n"
        "    def forward(self, batch):\n"
        "        for one in batch:\n"
        "            one['result'] = str(decimal.Decimal(1) / decimal.Decimal(7))\n"
    )
    config = {"import": [str(tmp_path / "sees_far.py")], "backend": "Process[SeesFar]"}
    with headrace.pipe(config) as pipe, a_context_of_its_own():
        assert pipe({"data": 1})["result"] == SEVENTH
        assert pipe.submit({"data": 1}).result(timeout=60)["result"] == SEVENTH


def test_a_caller_that_runs_the_requests_of_others_gives_them_nothing_of_its_context():
    """The first caller holds the instance until the others wait; then it, or a runner, takes them along."""
    entered, leave = threading.Event(), threading.Event()

    class Holds(headrace.Backend):
        def forward(self, batch):
            if batch[0]["data"] == "first":
                entered.set()
                assert leave.wait(60)
            for request in batch:
                request["result"] = (len(batch), what_is_seen())

    headrace.register("Holds", Holds, replace=True)
    with headrace.pipe({"backend": "Holds", "max": 4}) as pipe, ThreadPoolExecutor(3) as pool:

        def run(data):
            with a_context_of_its_own():
                return pipe({"data": data})["result"]

        first = pool.submit(run, "first")
        assert entered.wait(60)
        futures = [pipe.submit({"data": k}) for k in range(2)]
        leave.set()
        assert first.result(timeout=60)[1] == EXPECTED
        assert [one.result(timeout=60)["result"] for one in futures] == [(2, EXPECTED)] * 2


def test_what_forward_leaves_changed_does_not_reach_the_caller_or_another_instance():
    class Changes(headrace.Backend):
        def init(self, options, context):
            self.index = context.instance_index

        def forward(self, batch):
            for request in batch:
                request["result"] = (self.index, REQUEST_ID.get())
            REQUEST_ID.set(f"of instance {self.index}")

    headrace.register("Changes", Changes, replace=True)
    with (
        headrace.pipe({"backend": "Changes", "instance_num": 2}) as pipe,
        ThreadPoolExecutor(4) as pool,
    ):
        found = list(pool.map(lambda k: pipe({"data": k})["result"], range(40)))
        mine = pipe({"data": 1})["result"]
        assert REQUEST_ID.get() == "nobody's"
    assert {seen for index, seen in [*found, mine]} <= {
        "nobody's",
        "of instance 0",
        "of instance 1",
    }
    assert all(seen in ("nobody's", f"of instance {index}") for index, seen in found)
