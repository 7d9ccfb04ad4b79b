"""The engine alone: it starts from plain Python data, without configuration, plan or expression."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

import headrace
from headrace._running import blueprint
from headrace._running.threads import Signal
from headrace.errors import SetupError

COMPOSES = (
    "pydantic",
    "tomli",
    "tomllib",
    "pluggy",
    "headrace._expression",
    "headrace._config",
    "headrace._registry",
    "headrace._plan",
    "headrace._build",
    "headrace._options",
    "headrace.policies",
    "headrace.words",
)

PROGRAM = """
import asyncio, sys, threading
from collections import namedtuple
from headrace import errors
from headrace._running.blueprint import Blueprint, BuiltNode, Change, NodeBlueprint
from headrace._running.elements import Each
from headrace._running.route import Links
from headrace._pipeline import Pipeline
from headrace._running.instance import Instance
from headrace._running.instance import Limits

Cut = namedtuple("Cut", "take wake_at")

class All:
    sends_when_idle = True
    def cut(self, queue, instance, now):
        return Cut(len(queue), None)
    def choose(self, weight, free):
        return free[0]

class Backend:
    _liveness = None
    def __init__(self, function):
        self.function, self.closed = function, False
    def __call__(self, batch):
        outcomes = []
        for request in batch:
            try:
                request["result"] = self.function(request["data"])
                outcomes.append(None)
            except Exception as error:
                outcomes.append(error)
        return outcomes
    def close(self):
        self.closed = True
        closed.append(self)

closed = []

def node(name, backends, **links):
    def build(schedule):
        made = [Instance(i, one, most=None) for i, one in enumerate(backends)]
        return BuiltNode(schedule(made), instances=backends)
    return NodeBlueprint(Links(name, **links), build, All, limits=Limits(queue_size=8))

def blueprint(*nodes, **more):
    named = {one.links.name: one for one in nodes}
    return Blueprint(named, tuple(named), **more)
"""


def run(program):
    check = f"""
    brought = [n for n in {COMPOSES!r} if n in sys.modules]
    assert not brought, brought
    """
    text = PROGRAM + textwrap.dedent(program) + textwrap.dedent(check)
    command = [sys.executable, "-W", "error", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_node_serves_all_kinds_of_calls_and_closes():
    run(
        """
        backend = Backend(lambda x: 10 / x)
        with Pipeline(blueprint(node("main", [backend]))) as pipe:
            assert pipe({"data": 5})["result"] == 2
            assert [one["result"] for one in pipe([{"data": 1}, {"data": 2}])] == [10, 5]
            assert pipe.submit({"data": 10}).result()["result"] == 1
            assert asyncio.run(pipe.call_async({"data": 10}, timeout=60))["result"] == 1
            try:
                pipe({"data": 0})
            except ZeroDivisionError:  # to wrap it would be up to `headrace.Backend`
                pass
            else:
                raise AssertionError
            stats = pipe.stats()["nodes"]["main"]
            assert stats["ok"] == 5 and stats["failed"] == {"backend": 1}, stats
            described = pipe.describe()["nodes"]["main"]
            assert described == {
                "range": [1, None], "instance_num": 1, "owns_thread": False, "next": []
            }
            try:
                pipe.reload("main", {})
            except errors.SetupError as error:
                assert "configuration" in str(error)
        assert backend.closed
        """
    )


def test_a_graph_with_a_join_and_elements_of_a_list():
    run(
        """
        maps = {"left": (("result", "data"),), "right": (("result", "other"),)}
        each = Each("square", "data", "data")
        pipe = Pipeline(blueprint(
            node("square", [Backend(lambda x: x * x)], each=each, levels=(each,),
                 next=("left", "right")),
            node("left", [Backend(sum)], next=("join",)),
            node("right", [Backend(max)], next=("join",)),
            node("join", [Backend(lambda x: -x)], map=maps),
        ))
        for call in (pipe, lambda one: pipe.submit(one).result()):
            answer = call({"data": [1, 2, 3]})
            assert (answer["result"], answer["other"], answer["data"]) == (-14, 9, [1, 2, 3])
        pipe.close()
        assert len(closed) == 4
        """
    )


def test_a_node_is_changed_by_whoever_made_the_blueprint():
    run(
        """
        adopted = []
        def change(name, changes):
            def cancel(): pass
            def close(): return ()
            new = node(name, [Backend(lambda x: x + changes["by"])])
            return Change(blueprint(new), lambda: adopted.append(name), cancel, close)
        pipe = Pipeline(blueprint(node("main", [Backend(lambda x: x)]), change=change))
        assert pipe({"data": 1})["result"] == 1
        pipe.reload("main", {"by": 5})
        assert pipe({"data": 1})["result"] == 6
        assert adopted == ["main"] and len(closed) == 1
        pipe.close()
        assert len(closed) == 2
        """
    )


def test_what_was_built_is_closed_when_a_factory_raises():
    run(
        """
        built = []
        def fails(schedule):
            raise errors.SetupError("not here", node="b")
        parts = Blueprint(
            {"a": node("a", [Backend(abs)]), "b": NodeBlueprint(Links("b"), fails, All)}, ("a", "b"),
            close=lambda: built.append("closed") or (),
        )
        try:
            Pipeline(parts)
        except errors.SetupError as error:
            assert error.node == "b" and built == ["closed"]
        else:
            raise AssertionError
        """
    )


def test_a_build_that_fails_ends_when_all_that_was_built_is_closed(monkeypatch):
    looks, order = threading.Semaphore(0), []

    class Looks(Signal):
        def sleep(self, timeout_s=None):
            looks.release()
            return super().sleep(timeout_s)

    class Lingers(headrace.Backend):
        def forward(self, batch):
            """Never called."""

        def close(self):
            for _ in range(3):  # however often the thread that waits looks up
                looks.acquire(timeout=60)
            order.append("closed")

    class Fails(Lingers):
        def init(self, options, context):
            raise RuntimeError("no device")

    monkeypatch.setattr(blueprint, "LOOK_S", 0.001)
    monkeypatch.setattr(blueprint, "Signal", Looks)
    for cls in (Lingers, Fails):
        headrace.register(cls.__name__, cls)
    with pytest.raises(SetupError, match="no device"):
        headrace.pipe({"a": {"backend": "Lingers"}, "b": {"backend": "Fails"}})
    assert order == ["closed"]
