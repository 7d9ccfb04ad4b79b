"""Ctrl-C, signal handlers and destructors: at any moment, and nothing is lost."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from processes import run_process

import headrace
from headrace.errors import ClosedError, ContractError
from headrace.policies import Greedy

LATE_S = 60.0
HANGS_S = 900.0
"""A program that hangs shows its stacks after this: on a slow machine it may take minutes."""

PROGRAM = """
import faulthandler, random, sys, threading
sys.path.insert(0, {here!r})
faulthandler.dump_traceback_later({hangs}, exit=True)
import headrace
from headrace.errors import HeadraceError
from interrupting import Interrupts

@headrace.register("Hook")
class Hook:
    def forward(self, batch):
        for request in batch:
            if "hook" in request:
                request["hook"]()
            request["result"] = request["data"]

def later(pipe, *waiting):
    thread = threading.Thread(target=pipe, args=waiting, daemon=True)
    thread.start()
    return thread

def waiting(pipe):
    return pipe.stats()["nodes"][next(iter(pipe.config.nodes))]["waiting"]

def all_right(pipe, others):
    '''Nobody is left waiting, nothing is busy, the counts add up, and requests go through.'''
    for one in others:
        one.join({late})
        assert not one.is_alive(), "somebody waits for ever"
    assert pipe.submit({{"data": 5}}).result({late})["result"] == 5
    pipe.close()
    for node in pipe.stats()["nodes"].values():
        assert not node["waiting"] and not any(one["busy"] for one in node["instances"]), node
        assert node["submitted"] == node["ok"] + sum(node["failed"].values()), node
"""

from_python_3_11 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the handlers of an instruction are not listed"
)


def run(program):
    """Run a program, which ends with status 0, and give what it prints."""
    text = PROGRAM.format(here=str(Path(__file__).parents[1]), late=LATE_S, hangs=HANGS_S)
    done = run_process(
        [sys.executable, "-c", text + textwrap.dedent(program)], timeout=HANGS_S + LATE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


CONFIGS = {
    "idle": {"backend": "Hook"},
    "own thread": {"backend": "S[Hook,BackgroundThread[Hook]]"},
    "queue": {"backend": "Hook", "min": 1, "max": 2, "timeout_ms": 60_000},
    "sizes": {"backend": "Hook", "batch_sizes": [2, 4], "pad": True},
    "list": {"backend": "Hook", "max": 2},
    "graph": {
        "a": {"backend": "Hook", "next": "b,c", "max": 4},
        "b": {"backend": "Hook", "next": "d"},
        "c": {"backend": "Hook", "next": "d"},
        "d": {"backend": "Hook", "map": "b[result:data],c[result:x]"},
    },
}


@pytest.mark.slow
@pytest.mark.timeout(HANGS_S)
@from_python_3_11
def test_ctrl_c_at_any_point_and_a_second_one_lose_nothing():
    """One thread's request is interrupted, everywhere; then again at some point of what follows."""
    out = run(
        f"""
        def interrupt():
            raise KeyboardInterrupt

        def once(name, config, points):
            pipe = headrace.pipe(config)
            for k in range(3):
                pipe({{"data": k}})
            others = []
            def hook():
                def come():
                    others.append(later(pipe, {{"data": 7}}))
                interrupts.pause(come)
            interrupts = Interrupts(interrupt, *points)
            mine = [{{"data": 3, "hook": hook}}, {{"data": 4}}]
            interrupts.run(lambda: pipe(mine if name == "list" else mine[0]))
            all_right(pipe, others)
            return interrupts

        for name, config in {CONFIGS!r}.items():
            print(name, end=" ", flush=True)
            config = headrace.PipelineConfig.load(config)
            points = once(name, config, ()).count
            hit = [bool(once(name, config, (point,)).where) for point in range(1, points + 1)]
            assert sum(hit) > points / 2  # there are fewer where no run_on_helper was needed
            seed = random.Random(7)
            twice = 0
            for _ in range(30):
                first = seed.randint(1, points)
                twice += len(once(name, config, (first, first + seed.randint(1, 12))).where) == 2
            print(points, twice)
        """
    )
    points = {
        name: (int(n), int(twice))
        for name, n, twice in (line.rsplit(" ", 2) for line in out.splitlines())
    }
    assert points.keys() == CONFIGS.keys()
    assert all(n > 5 for n, _ in points.values())
    assert (
        sum(twice for _, twice in points.values()) > 30
    )  # how many differs between versions of Python


@pytest.mark.slow
@pytest.mark.timeout(HANGS_S)
@from_python_3_11
def test_ctrl_c_in_other_calls_loses_nothing():
    out = run(
        f"""
        import asyncio
        from internals import in_queue, standing_by

        def interrupt():
            raise KeyboardInterrupt

        ways = {{
            "submit": lambda pipe: pipe.submit([{{"data": 1}}, {{"data": 2}}]),
            "list": lambda pipe: pipe([{{"data": 1}}, {{"data": 2}}]),
            "timeout": lambda pipe: pipe({{"data": 1}}, timeout=60),
            "cancel": lambda pipe: pipe.submit({{"data": 1}}).cancel(),
            "close": lambda pipe: pipe.close(),
            "future": lambda pipe: pipe.submit({{"data": 1}}).result(60),
            "await": lambda pipe: asyncio.run(pipe.call_async({{"data": 1}})),
            "aside": lambda pipe: pipe({{"data": 1}}),
        }}
        config = headrace.PipelineConfig.load({{"backend": "Hook", "max": 2}})
        owns = headrace.PipelineConfig.load({{"backend": "BackgroundThread[Hook]", "max": 2}})

        def once(way, points):
            pipe = headrace.pipe(owns if way == "aside" else config)
            inside, go = threading.Event(), threading.Event()
            def hook():
                inside.set()
                go.wait({LATE_S})
            others = [later(pipe, {{"data": 0, "hook": hook}})]
            inside.wait({LATE_S})
            interrupts = Interrupts(interrupt, *points)
            if way in ("submit", "cancel"):
                others.append(later(pipe, {{"data": 7}}))
            elif way == "aside":
                def let_go():
                    while not (interrupts.where or standing_by(pipe) or in_queue(pipe)):
                        pass
                    go.set()
                threading.Thread(target=let_go).start()
            else:
                go.set()
            interrupts.run(lambda: ways[way](pipe))
            go.set()
            if way == "close":
                pipe.close()
                for one in others:
                    one.join({LATE_S})
                    assert not one.is_alive()
                assert pipe.stats()["state"] == "closed"
            else:
                all_right(pipe, others)
            return interrupts

        for way in ways:
            print(way, end=" ", flush=True)
            points = once(way, ()).count
            seed = random.Random(7)
            hits = [
                len(once(way, (point, point + seed.randint(1, 12))).where)
                for point in range(1, points + 1)
            ]
            print(points, hits.count(2))
        """
    )
    points = {way: (int(n), int(twice)) for way, n, twice in map(str.split, out.splitlines())}
    assert len(points) == 8
    assert all(n > 5 for n, _ in points.values())
    assert sum(twice for _, twice in points.values()) > 2


@pytest.mark.slow
@pytest.mark.timeout(HANGS_S)
@from_python_3_11
def test_a_signal_handler_may_call_the_pipeline_at_any_point():
    out = run(
        f"""
        others = {{
            "stats": lambda pipe: pipe.stats(),
            "submit": lambda pipe: futures.append(pipe.submit({{"data": 1}})),
            "cancel": lambda pipe: pipe.submit({{"data": 1}}).cancel(),
            "call": lambda pipe: pipe({{"data": 1}}),
            "close": lambda pipe: pipe.close(),
        }}

        def call(action, pipe):
            try:
                action(pipe)
            except HeadraceError:
                pass  # such as the refusal to wait for what the interrupted code holds

        node, graph = {{"backend": "Hook", "max": 4}}, {CONFIGS["graph"]!r}
        runs = [(name, node, 1) for name in others]
        runs += [("close", graph, 9)]
        for name, config, step in runs:
            action = others[name.split()[0]]
            config = headrace.PipelineConfig.load(config)
            for busy in (False, True):
                point = points = 1
                while point <= points:
                    futures = []
                    pipe = headrace.pipe(config)
                    for k in range(3):
                        pipe({{"data": k}})
                    inside, go = threading.Event(), threading.Event()
                    def hook():
                        inside.set()
                        go.wait({LATE_S})
                    if busy:
                        other = later(pipe, {{"data": 0, "hook": hook}})
                        inside.wait({LATE_S})
                    def act():
                        go.set()
                        call(action, pipe)
                    interrupts = Interrupts(act, point)
                    interrupts._paused = False
                    waker = threading.Timer(0.05, go.set) if busy else None
                    if waker is not None:
                        waker.start()
                    interrupts.run(lambda: pipe({{"data": 3}}))
                    points = max(points, interrupts.count)
                    for future in futures:
                        future.exception({LATE_S})
                    pipe.close()
                    assert pipe.stats()["state"] == "closed"
                    point += step
            print(name, points)
        """
    )
    assert len(out.splitlines()) == 6


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_the_handler_that_everybody_writes_closes_in_the_midst_of_calls():
    out = run(
        """
        import os, signal
        pipe = headrace.pipe({"backend": "Hook", "max": 4})
        signal.signal(signal.SIGTERM, lambda *_: pipe.close(timeout=30))
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        try:
            while True:
                pipe([{"data": 1}, {"data": 2}, {"data": 3}])
        except HeadraceError:
            pipe.close()  # the handler's did not wait if it came while this thread ran a batch
            print(pipe.stats()["state"])
        """
    )
    assert out == "closed\n"


# Destructors, which the collector runs in any thread, also in the midst of the scheduler.


@pytest.fixture
def inside(gate):
    """Return a function that has another called once, in the midst of the scheduler: by a destructor there."""
    waiting = []

    class Dies:
        def __init__(self, function):
            self.function = function

        def __del__(self):
            self.function()

    class Drops(Greedy):
        sends_when_idle = False

        def cut(self, queue, instance, now):
            while waiting:
                waiting.pop()
            return super().cut(queue, instance, now)

    headrace.register("Drops", Drops, replace=True)
    gate.open()
    return lambda function: waiting.append(Dies(function))


DROPS = {"backend": "Gate", "max": 4, "batch_policy": "Drops"}


def test_what_a_destructor_asks_for_inside_is_done_afterwards(client, inside):
    seen = {}

    def ask():
        seen["stats"] = pipe.stats()["nodes"]["main"]
        seen["future"] = pipe.submit({"data": "from inside"})
        gone = pipe.submit({"data": "gone"})
        gone.add_done_callback(lambda future: (seen.update(done=future.done()), called.set()))
        seen["cancelled"] = gone.cancel()
        done.set()

    called, done = threading.Event(), threading.Event()
    with headrace.pipe(DROPS) as pipe:
        inside(ask)
        assert client(pipe, {"data": 1}, timeout=LATE_S).outcome()["result"] == 1
        assert done.wait(LATE_S)
        assert seen["future"].result(LATE_S)["result"] == "from inside"
        assert called.wait(LATE_S)
        assert seen["done"]
        assert set(seen["stats"]) == set(pipe.stats()["nodes"]["main"])


@pytest.mark.parametrize(
    "way",
    [
        lambda pipe: pipe({"data": 1}),
        lambda pipe: pipe({"data": 1}, timeout=60),
        lambda pipe: pipe([{"data": 1}, {"data": 2}]),
    ],
    ids=["call", "timeout", "list"],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_destructor_that_would_have_to_wait_inside_is_told_so(client, inside, way, nodes):
    refused = []

    def asks_for_more():
        with pytest.raises(ContractError, match="submit") as caught:
            way(pipe)
        refused.append(caught.value)

    line = {"main": {**DROPS, "next": "after"}, "after": {"backend": "Identity"}}
    with headrace.pipe(DROPS if nodes == 1 else line) as pipe:
        inside(asks_for_more)
        assert client(pipe, {"data": 1}, timeout=LATE_S).outcome()["result"] == 1
        assert pipe({"data": 2})["result"] == 2
    (error,) = refused
    assert "a destructor called a pipeline" in str(error)
    assert error.node == "main"


def test_a_destructor_may_close_the_pipeline_inside(gate, client, inside):
    pipe = headrace.pipe(DROPS)
    inside(pipe.close)
    assert client(pipe, {"data": 1}, timeout=LATE_S).outcome()["result"] == 1
    pipe.close()
    assert gate.closed == 1
    with pytest.raises(ClosedError):
        pipe({"data": 1})


@pytest.mark.slow
@pytest.mark.timeout(HANGS_S)
@from_python_3_11
def test_ctrl_c_leaves_no_dict_that_is_refused_for_ever():
    out = run(
        f"""
        import asyncio
        import time

        def interrupt():
            raise KeyboardInterrupt

        ways = {{
            "call": lambda pipe, request: pipe(request),
            "timeout": lambda pipe, request: pipe(request, timeout=60),
            "list": lambda pipe, request: pipe([{{"data": 2}}, request]),
            "submit": lambda pipe, request: pipe.submit([{{"data": 2}}, request]),
            "parts": lambda pipe, request: pipe.submit(request, on_part=print),
            "stream": lambda pipe, request: [*pipe.stream(request)],
            "await": lambda pipe, request: asyncio.run(pipe.call_async(request)),
        }}
        config = headrace.PipelineConfig.load({{"backend": "Hook"}})

        def once(way, points):
            request, until = {{"data": 1}}, time.monotonic() + {LATE_S}
            with headrace.pipe(config) as pipe:
                interrupts = Interrupts(interrupt, *points)
                interrupts.run(lambda: ways[way](pipe, request))
                while True:
                    try:
                        assert pipe(request)["result"] == 1
                        return interrupts
                    except headrace.errors.InputError:  # until the backend is done with it
                        assert time.monotonic() < until, (way, interrupts.where)

        for way in ways:
            points = once(way, ()).count
            print(sum(len(once(way, (point,)).where) for point in range(1, points + 1)))
        """
    )
    assert all(int(points) > 20 for points in out.split())
