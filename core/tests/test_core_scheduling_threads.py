"""What threads do for each other: helper threads, the timer, calls of one by another, notes of locks."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace

import pytest

import headrace
from headrace import _process
from headrace._scheduling import driving, process_threads, threads
from headrace._scheduling.calls import Call
from headrace._scheduling.dispatch import Dispatcher
from headrace._scheduling.driving import Driver
from headrace._scheduling.entry import Entry
from headrace._scheduling.locks import holds_a_lock, may_lock, near_stack_end, taking
from headrace._scheduling.process_threads import Helpers, Timer
from headrace._scheduling.threads import Caller, Runner
from headrace.errors import BackendError, ContractError


def elsewhere(function):
    """Run a function in another thread, to its end."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


# Locks.


def test_a_thread_is_known_to_hold_a_lock_until_it_has_left_the_outermost():
    outer, inner = threading.RLock(), threading.Condition(threading.RLock())
    seen = []

    def nested():
        seen.append(holds_a_lock())
        with taking(outer):
            seen.append(holds_a_lock())
            with taking(inner):
                seen.append(holds_a_lock())
            seen.append(holds_a_lock())
        seen.append(holds_a_lock())

    elsewhere(nested)
    assert seen == [False, True, True, True, False]


def test_a_thread_may_take_a_lock_with_room_on_its_stack_and_while_it_holds_none():
    found = {"main": may_lock()}

    def deep():
        return may_lock() if near_stack_end() else deep()

    def look():
        found["another"] = may_lock()
        found["near the end of its stack"] = deep()
        with taking(threading.RLock()):
            found["inside"] = may_lock()

    elsewhere(look)
    assert [where for where, may in found.items() if may] == ["another"]


# Calls.


def interrupted(call, meanwhile=lambda: None):
    """Interrupt the thread that waits for a call; give what it is told: whether a backend goes on."""

    def sleep(_):
        meanwhile()
        raise KeyboardInterrupt

    call._signal = SimpleNamespace(sleep=sleep, wake=lambda: None)
    with pytest.raises(KeyboardInterrupt) as caught:
        call.wait()
    return caught.value.abandoned


def test_a_call_that_is_interrupted_before_it_begins_never_does():
    ran = []
    call = Call(ran.append, (1,))
    assert interrupted(call) is False
    call.run()
    assert ran == []


def test_a_call_that_is_interrupted_while_it_runs_is_abandoned():
    reported = []
    call = Call(lambda: reported.append(interrupted(call)), ())
    call.run()
    assert reported == [True]


@pytest.mark.parametrize(
    ("error", "abandoned"),
    [(None, False), (ValueError(), False), (BackendError("left", abandoned=True), True)],
)
def test_a_call_that_is_interrupted_when_it_is_over_is_abandoned_if_its_error_says_so(
    error, abandoned
):
    def function():
        if error is not None:
            raise error

    call = Call(function, ())
    assert interrupted(call, call.run) is abandoned


def test_a_call_whose_thread_has_died_fails_unless_it_was_over():
    over, unbegun = Call(lambda: 5, ()), Call(lambda: 5, ())
    over.run()
    over.lost()
    unbegun.lost()
    assert over.wait() == 5
    with pytest.raises(RuntimeError, match="has died"):
        unbegun.wait()


# Threads of the process.


def test_a_helper_thread_that_has_nothing_to_do_waits_for_a_job(monkeypatch, until):
    monkeypatch.setattr(process_threads, "_STAYS_S", 60.0)
    helpers, ran = Helpers("test"), threading.Event()
    helpers._idle.add(0)  # another one, so that none is started to follow
    thread = threading.Thread(target=helpers._serve_one, args=(1,))
    thread.start()
    until(lambda: 1 in helpers._idle or not thread.is_alive())
    helpers.add((ran.set,))
    thread.join(30)
    assert ran.is_set()


def test_the_exit_waits_for_a_thread_that_is_being_started(monkeypatch):
    """The system lets a new thread begin when it likes: here not before the exit waits for it."""
    late, ran, begin = [], threading.Event(), process_threads._thread.start_new_thread
    starts = SimpleNamespace(start_new_thread=lambda *job: late.append(job))
    looks = SimpleNamespace(sleep=lambda _: late and begin(*late.pop()) and False)
    helpers = Helpers("late")
    for name, value in (("_thread", starts), ("Signal", lambda: looks), ("errands", helpers)):
        monkeypatch.setattr(process_threads, name, value)
    monkeypatch.setattr(process_threads, "GIVES_UP_S", 60.0)
    monkeypatch.setattr(_process, "_open", type(_process._open)())
    helpers.run(ran.set)
    helpers._idle.add(0)  # another one, so that none is started to follow
    _process._at_exit()
    assert not late
    assert ran.wait(60)


class Unborn:
    """Starts threads, but for the first runners of a node: something kills them before their first line.

    Those are given up at once, and the others not before they have begun, however slowly the machine starts them.
    """

    def __init__(self, monkeypatch, *, deaths):
        self._begin, self.left, self.dead = process_threads._thread.start_new_thread, deaths, []
        self._gives_up = partial(monkeypatch.setattr, driving, "GIVES_UP_S")
        starts = SimpleNamespace(start_new_thread=self.start)
        monkeypatch.setattr(process_threads, "_thread", starts)

    def start(self, function, job):
        is_runner = job[0] == "headrace-main"
        dies = is_runner and self.left > 0
        if is_runner:
            self._gives_up(0.0 if dies else 60.0)
        if dies:
            self.left -= 1
            self.dead.append((function, job))
        else:
            self._begin(function, job)

    def revive(self):
        """Let the threads begin after all."""
        for function, job in self.dead:
            self._begin(function, job)


def test_a_runner_that_something_kills_at_its_birth_is_replaced(monkeypatch):
    Unborn(monkeypatch, deaths=3)
    with headrace.pipe({"backend": "Identity", "max": 4}) as pipe:
        assert pipe.submit({"data": 1}).result(60)["result"] == 1
        assert pipe.stats()["nodes"]["main"]["failed"] == {}


def test_a_runner_that_begins_after_it_was_given_up_ends_where_there_are_enough(monkeypatch, until):
    threads_ = Unborn(monkeypatch, deaths=1)
    with headrace.pipe({"backend": "Identity", "max": 4}) as pipe:
        assert pipe.submit({"data": 1}).result(60)["result"] == 1
        workers = pipe._engine._schedulers[0]._driver.workers
        threads_.revive()
        late = threads_.dead[0][1][1].args[1].__self__
        until(lambda: late.ident and not late.alive)
        assert workers._alive == set(workers.parked)
        assert pipe.submit({"data": 2}).result(60)["result"] == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_hits_the_helper_that_starts_a_runner_costs_no_request(monkeypatch, error):
    start, hit = Runner.start, [error]

    def hit_once(runner):
        if hit:
            raise hit.pop()
        start(runner)

    monkeypatch.setattr(Runner, "start", hit_once)
    with headrace.pipe({"backend": "Identity", "max": 4}) as pipe:
        assert pipe.submit({"data": 1}).result(60)["result"] == 1


def test_the_timer_sleeps_until_something_is_due(monkeypatch):
    monkeypatch.setattr(process_threads, "time", SimpleNamespace(monotonic=lambda: 100.0))
    timer, seen = Timer(), []
    timer._starts = True  # this thread is its own
    timer._changed = SimpleNamespace(sleep=seen.append, wake=lambda: seen.append("woken"))
    timer._call_due()
    timer.call_at(107.0, lambda: None)
    timer._call_due()
    timer.call_at(100.0, lambda: seen.append("called"))
    timer._call_due()
    timer._call_due()
    assert seen == [None, "woken", 7.0, "woken", "called", 7.0]


def test_the_thread_of_the_timer_is_replaced_when_something_kills_it(monkeypatch):
    def killed(*_, **__):
        raise SystemExit

    asked, leave = [], object()
    monkeypatch.setattr(process_threads._log, "error", killed)
    helpers = SimpleNamespace(run=lambda *job: asked.append(job), leave=leave)
    monkeypatch.setattr(process_threads, "errands", helpers)
    timer = Timer()
    timer._starts = True
    timer.call_at(0.0, lambda: 1 / 0)
    with pytest.raises(SystemExit):
        timer._run()
    assert asked == [(process_threads._in_thread, "headrace-timer", timer._run, leave)]


def test_a_helper_that_is_hit_before_it_has_a_job_is_idle_no_more(monkeypatch):
    def hit(*_):
        raise KeyboardInterrupt

    helpers = Helpers("hit")
    monkeypatch.setattr(process_threads, "_next", hit)
    assert helpers._serve_one(7)
    assert not helpers.ready


def test_an_interrupt_of_the_giving_up_says_that_a_backend_may_still_run(monkeypatch):
    def hit(*_):
        raise KeyboardInterrupt

    call = Call(print, ())
    monkeypatch.setattr(call, "_signal", SimpleNamespace(sleep=hit))
    monkeypatch.setattr(call, "_give_up", hit)
    with pytest.raises(KeyboardInterrupt) as caught:
        call.wait()
    assert caught.value.abandoned


def test_a_thread_that_waits_again_has_the_signal_that_it_had_before():
    first = Caller(-7)
    assert Caller(-7).signal is not first.signal
    first.keep_signal()
    assert Caller(-7).signal is first.signal


# Who looks at the queue, and when.


@pytest.mark.parametrize(
    ("caller", "asked"),
    [
        ({"pending": 1}, []),
        ({"pending": 1, "wake_at": 11.0}, []),
        ({"pending": 1, "wake_at": 10.0}, ["resign", "dispatch"]),
        ({"pending": 0}, ["resign", "dispatch None"]),
        ({"pending": 1, "work": "given"}, ["begin", "resign", "dispatch None"]),
        ({"pending": 1, "work": "given", "nudged": True}, ["begin", "resign", "dispatch None"]),
        ({"pending": 1, "nudged": True}, ["dispatch", "resign", "dispatch None"]),
    ],
)
def test_an_awake_caller_that_does_something_else_leaves_the_queue_to_others(caller, asked):
    log = []
    me = Caller(-8)
    for name, value in caller.items():
        setattr(me, name, value)
    instance = SimpleNamespace(ident=0)
    work = SimpleNamespace(instance=instance)
    me.work = work if me.work else None
    nudged = me.nudged

    def dispatch(by):
        log.append("dispatch" if by is me else "dispatch None")
        return work if by is me else None

    driver = SimpleNamespace(
        begin=lambda work: log.append("begin"),
        resign=lambda by: log.append("resign") or by is me,
        dispatch=dispatch,
        _node=SimpleNamespace(clock=lambda: 10.0),
    )
    taken = Driver._take_up(driver, me)
    assert log == asked
    assert (taken is work) == bool({"begin", "dispatch"} & {*log})
    assert me.work is None
    assert me.nudged == (nudged and "begin" in log)
    assert instance.ident == (-8 if "begin" in log else 0)


def test_the_earliest_time_to_look_again_is_kept_by_whoever_sleeps_until_then():
    node, alarms = SimpleNamespace(wake_at=None, waker=None), []
    timer = SimpleNamespace(call_at=lambda at, _: alarms.append(at))
    dispatcher = SimpleNamespace(_node=node, _timer=timer, _woken=None)
    first, second = Caller(-9, pending=1), Caller(-10, pending=1)
    noted = []
    for at, who in (
        (20.0, first),
        (20.0, None),
        (15.0, second),
        (10.0, Caller(-11)),
        (12.0, first),
    ):
        Dispatcher._plan(dispatcher, at, who)
        noted.append((node.wake_at, node.waker, list(alarms)))
    assert noted == [
        (20.0, first, []),
        (20.0, first, []),
        (15.0, second, []),
        (10.0, None, [10.0]),
        (10.0, None, [10.0]),
    ]
    assert (first.wake_at, second.wake_at) == (20.0, 15.0)


def test_a_list_that_a_destructor_sends_inside_of_a_lock_is_refused():
    line = {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "Identity"}}
    refused = []

    def destructor():
        with taking(threading.RLock()), pytest.raises(ContractError, match="submit") as caught:
            pipe([{"data": 1}, {"data": 2}])
        refused.append(caught.value.node)

    with headrace.pipe(line) as pipe:
        elsewhere(destructor)
    assert refused == ["a"]


@pytest.mark.parametrize("outer", [(), ("a batch in whose backend the wait began",)])
def test_what_a_thread_runs_inside_of_its_wait_is_not_held_until_that_wait_ends(monkeypatch, outer):
    # Thread 1 waits for a list. It runs one item itself, and thread 2 another one.
    monkeypatch.setitem(threads.batches_run, 1, tuple([Entry({})] for _ in outer))
    caller = threads.Caller(1)
    own, others = Entry({"data": 1}, caller), Entry({"data": 2}, caller)
    monkeypatch.setitem(threads.batches_run, 1, ([own], *threads.batches_run[1]))
    monkeypatch.setitem(threads.batches_run, 2, ([others],))
    served = threads.served_here(2)

    def held(holder, entries=None):
        instance = SimpleNamespace(ident=1, holder=holder, entries=entries)
        return threads.held_by(served, instance)

    assert not held(None)
    assert not held(own.request)
    assert not held(caller, threads.batches_run[1][0])
    assert held({})
    assert all(held(caller, entries) for entries in threads.batches_run[1][1:])
