"""Ctrl-C while a pipeline is being built, each in a process of its own."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from processes import run_python

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")

FAILS_LATE_S = 600.0
"""A process that hangs fails its test after this; nothing else is measured in seconds."""

COMMON = """
import os, random, signal, threading
import headrace
from late import Either

begun, let_go = threading.Event(), threading.Event()
open_now, log = set(), []

class Polite(headrace.Backend):
    owns_thread = True
    def init(self, options, context):
        begun.set()
        while not context.cancelled():
            let_go.wait(0.01)
        log.append("noticed")
        raise RuntimeError("given up")
    def forward(self, batch):
        pass

class Deaf(headrace.Backend):
    owns_thread = True
    def init(self, options, context):
        begun.set()
        let_go.wait()
        open_now.add(self)
        log.append("built")
    def forward(self, batch):
        pass
    def close(self):
        open_now.discard(self)
        log.append("closed")

class Own(headrace.Backend):
    owns_thread = True
    def init(self, options, context):
        for store in (context.store.instance, context.store.scope, context.store.node):
            store.get_or_create(object(), Kept)
        open_now.add(self)
    def forward(self, batch):
        pass
    def close(self):
        open_now.discard(self)

class Fails(headrace.Backend):
    owns_thread = True
    def init(self, options, context):
        context.store.instance.get_or_create(object(), Kept)
        raise RuntimeError("not here")
    def forward(self, batch):
        pass

class Kept:
    def __init__(self):
        open_now.add(self)
    def close(self):
        open_now.discard(self)

for one in (Polite, Deaf, Own, Fails, Either):
    headrace.register(one)

def threads():
    # Those of the process, which run helpers for any pipeline, end later.
    mine = [t for t in threading.enumerate() if t.name.startswith("headrace-")]
    return [t for t in mine if t.name not in ("headrace-helper", "headrace-timer")]

def wait_until_nothing_is_left():
    for _ in range(6000):
        if not threads() and not open_now:
            return
        threading.Event().wait(0.01)
    raise AssertionError((threads(), open_now))

raised = threading.Semaphore(0)

def handle(signum, frame):
    raised.release()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handle)

def interrupt(times):
    # CPython does not see a signal that comes just before a thread goes to sleep: once more.
    def send():
        begun.wait()
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            while not raised.acquire(timeout=0.05):
                os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
"""


def run(program):
    done = run_python(
        COMMON + textwrap.dedent(program),
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=FAILS_LATE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_being_built_is_told_at_once():
    """Also where the stack is almost full: the build has a thread of its own then, and goes on."""
    out = run(
        """
        import sys
        def build(backend, depth):
            if depth == 0:
                headrace.pipe({"backend": backend, "instance_num": 2})
            build(backend, depth - 1)
        nested = "S[Own,BackgroundThread[BackgroundThread[Polite]]]"
        for depth in (0, sys.getrecursionlimit() - 400):
            for backend in ("Polite", "S[Own,Polite]", nested, "Either[Polite,Own]"):
                log.clear()
                begun.clear()
                interrupt(1)
                try:
                    build(backend, depth)
                except KeyboardInterrupt:
                    print(log)
                wait_until_nothing_is_left()
        """
    )
    assert out == "['noticed']\n" * 8


def test_a_second_one_leaves_without_waiting():
    """Nor does the end of the program wait."""
    out = run(
        """
        for _ in range(2):
            begun.clear()
            let_go.clear()
            log.clear()
            interrupt(2)
            try:
                headrace.pipe({"backend": "S[Own,Deaf]"})
            except KeyboardInterrupt:
                print(log)
            if _ == 0:
                let_go.set()
                wait_until_nothing_is_left()
                print(log)
        """
    )
    assert out == "[]\n['built', 'closed']\n[]\n"


def test_interrupts_at_any_point_leave_nothing_behind():
    """One interrupt, or a second and a third while the first is seen to."""
    out = run(
        """
        import sys, time
        config = headrace.PipelineConfig.load({
            "a": {"backend": "IoC[Own;S[Own,Own]]", "instance_num": 3, "next": "b"},
            "b": {"backend": "S[Identity,BackgroundThread[Own]]", "next": "c"},
            "c": {"backend": "Either[BackgroundThread[Fails],Own]"},
        })
        took = 9.0
        for _ in range(5):
            started = time.perf_counter()
            pipe = headrace.pipe(config)
            took = min(took, time.perf_counter() - started)
            pipe.close()
        dice, shots, hits, lost = random.Random(1), [], 0, []
        def fire(signum, frame):
            if shots:
                shots.pop()
                raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, fire)
        # CPython itself loses what is raised while it calls back for an object that is gone.
        sys.unraisablehook = lambda what: lost.append(what.exc_type)
        for _ in range(200):
            pipe = None
            shots[:] = [None] * dice.choice([1, 1, 2, 3])
            try:
                try:
                    again = dice.uniform(1e-5, took)
                    started = time.perf_counter()
                    signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, took), again)
                    pipe = headrace.pipe(config)
                    shots.clear()
                    # What was measured before may have been while the machine was busy.
                    took = min(took, time.perf_counter() - started)
                finally:
                    shots.clear()
            except KeyboardInterrupt:
                hits += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if pipe is not None:
                pipe.close()
            del pipe
        wait_until_nothing_is_left()
        print(hits > 20)
        """
    )
    assert out == "True\n"
