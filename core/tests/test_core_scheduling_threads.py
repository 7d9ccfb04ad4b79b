"""What threads do for each other: helper threads, the timer, own threads, calls of one thread for another."""

from __future__ import annotations

import threading
import time
from threading import get_ident

import pytest
from headrace._scheduling.own_thread import OwnThread
from headrace._scheduling.timer import Timer

from headrace._running.threads import Call, HandOver, Helpers
from headrace.errors import BackendError

LATE_S = 60.0


# Calls.


class Hits:
    """A signal in whose sleep an interrupt hits the thread that waits."""

    def __init__(self, meanwhile=lambda: None):
        self.meanwhile = meanwhile

    def sleep(self, timeout_s=None):
        self.meanwhile()
        raise KeyboardInterrupt

    def wake(self):
        """Wake nobody."""


def interrupted(call, meanwhile=lambda: None, begin=lambda run: None):
    """Interrupt the thread that waits for a call; give what it is told: whether a backend goes on."""
    call._signal = Hits(meanwhile)
    with pytest.raises(KeyboardInterrupt) as caught:
        call.wait(begin)
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


def test_a_call_that_is_interrupted_when_it_has_begun_and_nobody_waits_yet_is_abandoned():
    reported = []

    def begin(run):
        raise KeyboardInterrupt

    call = Call(lambda: reported.append(interrupted(call, begin=begin)), ())
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


# Helper threads.


def test_a_job_that_waits_for_another_one_keeps_it_from_nothing():
    helpers = Helpers()
    done = [threading.Event() for _ in range(5)]

    def job(number):
        if number + 1 < len(done):
            assert done[number + 1].wait(LATE_S)
        done[number].set()

    for number in range(len(done)):
        helpers.run(job, number)
    assert all(one.wait(LATE_S) for one in done)


def test_what_a_job_raises_is_logged_and_its_thread_goes_on(caplog, until):
    helpers, done = Helpers(), threading.Event()
    helpers.run(lambda: 1 // 0)
    helpers.run(done.set)
    assert done.wait(LATE_S)
    until(lambda: "ZeroDivisionError" in caplog.text)


def test_what_was_handed_over_is_done_in_its_order_and_before_what_is_asked_for_next():
    hands, done = HandOver(), []
    for number in range(50):
        hands.give(done.append, number)
    assert hands.first(done.copy) == list(range(50))


# The timer.


def test_alarms_are_called_in_the_order_of_their_times_and_not_after_a_cancel(caplog):
    timer, called, over = Timer(), [], threading.Event()
    now = time.monotonic()
    gate = threading.Event()
    timer.call_at(now, lambda: gate.wait(LATE_S))  # the others come meanwhile
    timer.call_at(now + 0.002, lambda: called.append("second"))
    timer.call_at(now + 0.001, lambda: called.append("first"))
    timer.call_at(now + 0.003, lambda: 1 // 0)
    gone = timer.call_at(now + 0.003, lambda: called.append("gone"))
    timer.call_at(now + 0.004, over.set)
    gone.cancel()
    gate.set()
    assert over.wait(LATE_S)
    assert called == ["first", "second"]
    assert "ZeroDivisionError" in caplog.text


def test_the_timer_looks_up_for_an_alarm_that_is_due_before_the_first():
    timer, called, begun = Timer(), threading.Event(), threading.Event()
    timer.call_at(time.monotonic(), begun.set)
    late = timer.call_at(time.monotonic() + 3600, print)
    assert begun.wait(LATE_S)
    timer.call_at(time.monotonic(), called.set)
    assert called.wait(LATE_S)
    late.cancel()


def test_alarms_that_were_taken_back_are_not_kept():
    timer = Timer()
    first = timer.call_at(time.monotonic() + 3600, print)
    for _ in range(1000):
        timer.call_at(time.monotonic() + 3600, print).cancel()
    assert len(timer._heap) < 200
    first.cancel()


# Own threads.


@pytest.fixture
def thread(until):
    one = OwnThread("headrace-test")
    one.start()
    yield one
    one.stop()
    until(lambda: "headrace-test" not in {t.name for t in threading.enumerate()})


def test_a_call_runs_in_the_own_thread_and_gives_its_result_or_its_error(thread):
    assert thread.call(get_ident) == thread.ident != get_ident()
    assert thread.call(lambda: thread.call(get_ident)) == thread.ident  # it calls itself
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)
    assert thread.call(max, 1, 2, look_s=0.01) == 2


def test_jobs_run_in_their_order_and_those_that_wait_are_wanted(thread):
    inside, go, order = threading.Event(), threading.Event(), []
    thread.post(lambda: (inside.set(), go.wait(LATE_S)))
    assert inside.wait(LATE_S)
    assert not thread.wanted
    for number in range(5):
        thread.post(lambda number=number: order.append(number))
    assert thread.wanted
    go.set()
    thread.call(bool)
    assert order == list(range(5))


def test_a_thread_that_is_stopped_does_what_it_was_given_before():
    thread, done = OwnThread("headrace-test"), threading.Event()
    thread.start()
    thread.post(done.set)
    thread.stop()
    assert not thread.alive
    assert done.wait(LATE_S)
