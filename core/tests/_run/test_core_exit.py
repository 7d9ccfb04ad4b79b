"""Ctrl-C, the end of the interpreter, and fork, each in a process of its own."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest
from internals import at_exit
from processes import run_python

FAILS_LATE_S = 600.0
"""A process that hangs fails its test after this; nothing else is measured in seconds."""

COMMON = """
import os, signal, sys, threading
import headrace

entered, leave = threading.Semaphore(0), threading.Semaphore(0)

class Gate(headrace.Backend):
    max = None
    def forward(self, batch):
        entered.release()
        if batch[0]["data"] != "quick":
            leave.acquire()
        for request in batch:
            request["result"] = request["data"]

class OwnGate(Gate):
    owns_thread = True

headrace.register("Gate", Gate)
headrace.register("OwnGate", OwnGate)

def interrupt_when(condition):
    hit = threading.Event()
    def interrupt(signum, frame):
        if not hit.is_set():
            hit.set()
            raise KeyboardInterrupt
    signal.signal(signal.SIGINT, interrupt)
    def watch():
        while not condition():
            hit.wait(0.01)
        # CPython does not see a signal that comes just before a thread goes to sleep: once more.
        while not hit.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            hit.wait(0.05)
    threading.Thread(target=watch, daemon=True).start()

def waits(pipe, count):
    return lambda: pipe.stats()["nodes"]["main"]["waiting"] >= count

def background(function, *args, **kwargs):
    box = {}
    def run():
        try:
            box["value"] = function(*args, **kwargs)
        except BaseException as error:
            box["error"] = error
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    box["thread"] = thread
    return box
"""


def run(program, *, status=0, before=COMMON):
    done = run_python(
        before + textwrap.dedent(program),
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        timeout=FAILS_LATE_S,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


posix = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@posix
@pytest.mark.parametrize("backend", ["Gate", "OwnGate"])
def test_ctrl_c_while_queued_withdraws_the_request_and_hits_nobody_else(backend):
    out = run(
        f"""
        pipe = headrace.pipe({{"backend": "{backend}"}})
        ways = [
            lambda request: pipe(request),
            lambda request: pipe([request]),
            lambda request: pipe(request, timeout=200),
        ]
        for way in ways:
            other = background(pipe, {{"data": "other"}})
            entered.acquire()
            request = {{"data": "mine"}}
            interrupt_when(waits(pipe, 1))
            try:
                way(request)
            except KeyboardInterrupt as error:
                print(error.abandoned, request, pipe.stats()["nodes"]["main"]["waiting"])
            leave.release()
            other["thread"].join(60)
            print(other["value"]["result"], pipe({{"data": "quick"}})["result"])
            entered.acquire()  # the quick one has entered, too
        pipe.close()

        pipe = headrace.pipe({{"backend": "{backend}", "queue_size": 1}})
        other = background(pipe, {{"data": "other"}})
        entered.acquire()
        queued = pipe.submit({{"data": "quick"}})
        interrupt_when(waits(pipe, 2))
        try:
            pipe.submit(request)
        except KeyboardInterrupt as error:
            print(error.abandoned, request, pipe.stats()["nodes"]["main"]["waiting"])
        leave.release()
        print(queued.result(60)["result"])
        pipe.close()
        """
    )
    expected = 3 * "False {'data': 'mine'} 0\nother quick\n"
    assert out == expected + "False {'data': 'mine'} 1\nquick\n"


@posix
@pytest.mark.parametrize("backend", ["Gate", "OwnGate"])
def test_ctrl_c_while_another_thread_runs_the_request_says_abandoned(backend):
    out = run(
        f"""
        pipe = headrace.pipe({{"backend": "{backend}"}})
        interrupt_when(lambda: entered.acquire(timeout=60))
        try:
            pipe({{"data": "mine"}}, timeout=200)
        except KeyboardInterrupt as error:
            print(error.abandoned)
        leave.release()
        print(pipe({{"data": "quick"}})["result"])
        pipe.close()
        """
    )
    assert out == "True\nquick\n"


@posix
@pytest.mark.parametrize("how", ["pass", "sys.exit(3)", "raise ValueError"])
def test_the_interpreter_ends_with_requests_in_every_state(how, tmp_path):
    log = tmp_path / "log"
    status = {"pass": 0, "sys.exit(3)": 3}.get(how, 1)
    out = run(
        f"""
        import ctypes
        from internals import at_exit
        at_exit.EXIT_S = 0.2
        boxes = []
        for backend in ("Gate", "OwnGate"):
            pipe = headrace.pipe({{"backend": backend, "queue_size": 2}})
            boxes.append((pipe, background(pipe, {{"data": "running"}})))
            entered.acquire()
            queued = [pipe.submit({{"data": k}}) for k in range(2)]
            boxes.append(background(pipe.submit, {{"data": "outside"}}))
            for future in queued:
                future.add_done_callback(lambda f: print(type(f.exception()).__name__, flush=True))
        print("end", flush=True)
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        libc.fputs(b"of a library", ctypes.c_void_p(libc.fopen({bytes(log)!r}, b"w")))
        {how}
        """,
        status=status,
    )
    assert out.startswith("end\n")
    assert log.read_text() == "of a library"  # which lies in a buffer until the end


def test_a_request_that_waits_at_the_end_is_failed_not_run():
    out = run(
        """
        from internals import at_exit
        at_exit.EXIT_S = 60
        pipe = headrace.pipe({"backend": "Gate"})
        pipe.submit({"data": "running"})
        entered.acquire()
        queued = pipe.submit({"data": "queued"})
        threading.Thread(
            target=lambda: (print(type(queued.exception()).__name__, flush=True), leave.release()),
            daemon=True,
        ).start()
        """
    )
    assert out == "ClosedError\n"


def test_a_destructor_that_calls_a_pipeline_as_the_interpreter_ends_waits_for_nobody():
    # Without COMMON: a class that is registered would keep the globals of the program from being deleted.
    out = run(
        """
        import sys
        import headrace
        pipe = headrace.pipe({"backend": "Identity"})
        future = pipe.submit({"data": 1})
        future.result()
        ways = {
            "call": lambda: pipe({"data": 1}),
            "timeout": lambda: pipe({"data": 1}, timeout=60),
            "list": lambda: pipe([{"data": 1}]),
            "submit": lambda: pipe.submit({"data": 1}),
            "stats": lambda: type(pipe.stats()).__name__,
            "close": pipe.close,
            "cancel": future.cancel,
        }

        class Last:
            def __del__(self, ways=ways, ended=sys.is_finalizing):
                for name, way in ways.items():
                    try:
                        print(ended(), name, way(), flush=True)
                    except Exception as error:
                        print(ended(), name, type(error).__name__, flush=True)

        last = Last()
        """,
        before="",
    )
    refused = [f"True {name} ClosedError" for name in ("call", "timeout", "list", "submit")]
    answers = ["True stats Statistics", "True close None", "True cancel False"]
    assert out.splitlines() == [*refused, *answers]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("held", [False, True])
def test_in_a_forked_child_every_call_says_why_it_is_closed(held):
    out = run(
        f"""
        import asyncio, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        cuts, goes_on = threading.Event(), threading.Event()

        class Holds(headrace.policies.Greedy):
            sends_when_idle = False

            def cut(self, queue, instance, now):
                if queue[0].priority:
                    cuts.set()
                    goes_on.wait()
                return super().cut(queue, instance, now)

        headrace.register("Holds", Holds)
        pipe = headrace.pipe({{"backend": "Gate", "batch_policy": "Holds", "instance_num": 2}})
        pipe({{"data": "quick"}})
        pipe.submit({{"data": "busy"}})
        if {held}:  # the fork comes in the midst of a decision
            pipe.submit({{"data": "quick"}}, priority=1)
            assert cuts.wait(60)
        child = os.fork()
        if child == 0:
            for call in (
                lambda: pipe({{"data": 1}}),
                lambda: pipe([{{"data": 1}}]),
                lambda: pipe({{"data": 1}}, timeout=60),
                lambda: pipe.submit({{"data": 1}}),
                lambda: asyncio.run(pipe.call_async({{"data": 1}})),
            ):
                try:
                    call()
                except headrace.errors.ClosedError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(9)
            assert pipe.stats()["state"] == "closed" and not pipe.ready
            pipe.close()
            with headrace.pipe({{"backend": "Gate"}}) as own:
                assert own({{"data": "quick"}})["result"] == "quick"
                assert own.submit({{"data": "quick"}}).result(timeout=60)["result"] == "quick"
                assert own({{"data": "quick"}}, timeout=60)["result"] == "quick"
            sys.exit(0)
        goes_on.set()
        _, status = os.waitpid(child, 0)
        leave.release()
        print(status, pipe({{"data": "quick"}})["result"])
        """
    )
    assert out == "0 quick\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "asks",
    [
        'pipe({"data": 1})',
        'pipe({"data": 1}, timeout=60)',
        'pipe.submit({"data": 1})',
        "pipe.ready",
        "pipe.stats()",
    ],
)
def test_a_forked_child_says_once_what_happened_and_what_to_do(asks):
    """The child asks three times for a pipeline of the parent; another one was closed before the fork."""
    out = run(
        f"""
        import logging, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
        pipe = headrace.pipe({{"backend": "Gate"}})
        headrace.pipe({{"backend": "Gate"}}).close()
        child = os.fork()
        if child == 0:
            for _ in range(3):
                try:
                    {asks}
                except headrace.errors.ClosedError:
                    pass
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        print(pipe({{"data": "quick"}})["result"], child)
        """
    )
    said, answer = out.splitlines()
    child = answer.split()[1]
    assert said.startswith("headrace.pipeline ERROR the pipeline of main was built before a fork")
    assert f"process {child} refuses" in said
    assert "Build it after the fork" in said
    assert "gunicorn --preload" in said
    assert answer == f"quick {child}"


def test_a_pipeline_that_is_built_during_the_exit_keeps_no_other_from_being_closed(monkeypatch):
    """Another thread adds it in the midst of the look at those that are open."""

    class One:
        closed = None

        def busy(self):
            return False

        def close(self, *, drain, timeout):
            self.closed = {"drain": drain}

    ones, late = [One() for _ in range(3)], One()
    monkeypatch.setattr(at_exit, "_open", type(at_exit._open)())
    for one in ones:
        at_exit.close_at_exit(one)

    looked = []

    def trace(frame, event, _):
        if event == "call" and "weakref" in frame.f_code.co_filename:
            looked.append(frame.f_code)
            if looked.count(frame.f_code) == 2:  # a generator goes on after its first item
                sys.settrace(None)
                at_exit.close_at_exit(late)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        at_exit._at_exit()
    finally:
        sys.settrace(before)
    assert [one.closed for one in ones] == 3 * [{"drain": False}]
