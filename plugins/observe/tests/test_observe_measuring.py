"""Percentiles, arrivals, loads and windows, without a clock of the machine."""

from __future__ import annotations

import itertools
import math
import threading
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputError, OverloadedError
from headrace_observe.bench.arrivals import poisson, read_arrivals, read_samples
from headrace_observe.bench.figures import latency_histogram, latency_ms, percentile
from headrace_observe.bench.load import OpenLoop, client, send
from headrace_observe.bench.measurement import Plan, measure
from headrace_observe.bench.notes import Notes, Window, agree
from headrace_observe.bench.samples import random_array

seconds = st.floats(1e-6, 100, allow_nan=False)


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds
        return False


@given(st.lists(seconds, min_size=1), st.sampled_from([0, 1, 50, 90, 99, 99.9, 100]))
def test_percentiles_are_those_of_numpy(values, percent):
    expected = np.percentile(values, percent, method="inverted_cdf")
    assert percentile(sorted(values), percent) == expected


def test_latencies_are_given_in_milliseconds_and_none_where_there_are_none():
    found = latency_ms(k / 1000 for k in range(1, 101))
    assert found == {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert set(latency_ms([]).values()) == {None}


@given(st.lists(seconds, max_size=50))
def test_every_latency_is_in_one_bin(values):
    found = latency_histogram(values)
    assert sum(found["counts"]) == len(values)
    assert len(found["edges_ms"]) == (len(found["counts"]) + 1 if values else 0)


def test_gaps_of_arrivals_are_exponential():
    times = list(itertools.islice(poisson(200, seed=3), 20_000))
    gaps = np.diff([0.0, *times])
    assert math.isclose(gaps.mean(), 1 / 200, rel_tol=0.03)
    assert math.isclose((gaps > 1 / 200).mean(), math.exp(-1), rel_tol=0.03)
    assert times == list(itertools.islice(poisson(200, seed=3), 20_000))


def test_arrivals_of_a_file_count_from_the_first(tmp_path):
    file = tmp_path / "arrivals.txt"
    written = "# seconds\n1700000000.5\n\n1700000001.0  # a second\u2028one\n"
    for content in (written, "\ufeff" + written.removeprefix("# seconds\n").replace("\n", "\r\n")):
        file.write_bytes(content.encode())
        assert read_arrivals(file) == [0.0, 0.5]


def test_samples_with_a_mark_are_read_and_a_byte_that_is_no_text_is_told_with_its_line(tmp_path):
    file = tmp_path / "samples.jsonl"
    file.write_bytes('\ufeff{"name": "a\u2028b"}\r\n\r\n{"name": "c"}'.encode())
    assert read_samples(file) == [{"name": "a\u2028b"}, {"name": "c"}]
    for read in (read_samples, read_arrivals):
        file.write_bytes(b"\n\n\xe9")
        with pytest.raises(InputError, match=r"samples\.jsonl:3: "):
            read(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\nsoon\n", ":2: expected a time"),
        ("2\n1\n", ":2: the time 1 is before"),
        ("", "no arrival"),
    ],
)
def test_a_file_that_is_no_arrivals_is_refused_with_the_line(tmp_path, text, message):
    file = tmp_path / "arrivals.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_arrivals(file)


@pytest.mark.first("measure, trace and tune: the figures are true")
def test_a_stall_is_in_the_latencies_of_an_open_loop_and_not_of_a_closed_one():
    """The tenth request stops the pipeline for a second; arrivals are due every 10 ms."""
    clock, calls = Clock(), itertools.count(1)

    def call(request):
        clock.now += 1.0 if next(calls) == 10 else 0.001

    def submit(request):
        call(request)
        future = Future()
        future.set_result(request)
        return future

    opened, closed = Notes(), Notes()
    requests = ({"data": k} for k in itertools.count())
    assert send(submit, requests, [k / 100 for k in range(200)], opened, clock.pause, clock) == 200
    calls = itertools.count(1)
    client(call, itertools.islice(requests, 200), closed, lambda: True, clock)
    late, _ = opened.between(0, math.inf)
    alone, _ = closed.between(0, math.inf)
    assert sum(latency > 0.5 for latency in alone) == 1
    # Worked out by hand: request k is meant at k * 10 ms; the one that stalls is answered at 1.09 s,
    # and each one after it 1 ms after the one before, until the backlog is gone.
    expected = [1.09 + 0.001 * (k - 9) - 0.01 * k for k in range(10, 65)]
    assert sum(latency > 0.5 for latency in late) == 1 + sum(value > 0.5 for value in expected)


def test_what_fails_is_counted_by_code_and_is_no_latency():
    clock, notes = Clock(), Notes()

    def call(request):
        clock.now += 1
        if request["data"] % 3 == 0:
            raise OverloadedError("full", queue_size=1, waiting=1)

    client(call, ({"data": k} for k in range(6)), notes, lambda: True, clock)
    latencies, failed = notes.between(100, 107)
    assert (list(latencies), dict(failed)) == ([1.0] * 4, {"overloaded": 2})


class Scripted:
    """A load that answers so many requests per second, second by second, then goes on as at the end."""

    by_rate = True
    ended = False
    about = {"kind": "closed", "clients": 1}  # noqa: RUF012
    clock_covers = "all"

    def __init__(self, clock, rates):
        self.notes = [Notes()]
        self.stopped = False
        for second in range(60):
            rate = rates[min(second, len(rates) - 1)]
            for k in range(rate):
                self.notes[0].ok(clock.now + second + (k + 0.5) / rate, 1 / rate)

    def start(self):
        pass

    def stop(self):
        self.stopped = True


def measured(rates, plan, wait=None):
    clock = Clock()
    load = Scripted(clock, rates)
    point = measure(load, plan, clock=clock, wait=wait or clock.pause)
    assert load.stopped
    return point.to_dict()


@pytest.mark.first("measure, trace and tune: the figures are true")
def test_the_figures_are_those_of_three_windows_that_agree():
    plan = Plan(warm_up_s=1, window_s=1, tolerance=0.05)
    found = measured([10, 50, 80, 100, 101, 99], plan)
    assert found["stable"] is True
    assert found["ok"] == 100 + 101 + 99
    assert found["throughput_rps"] == pytest.approx(100, rel=0.02)


def test_what_never_agrees_ends_and_says_so():
    found = measured([100, 200] * 20, Plan(warm_up_s=0, window_s=1, longest_s=6))
    assert (found["stable"], found["ok"]) == (False, 900)


def test_a_fixed_time_is_one_window():
    found = measured([100, 200] * 20, Plan(warm_up_s=1, seconds=4))
    assert (found["stable"], found["ok"], found["seconds"]) == (None, 600, pytest.approx(4))


def test_an_interrupt_leaves_what_was_measured():
    clock, waits = Clock(), itertools.count()

    def wait(seconds):
        if next(waits) == 20:
            raise KeyboardInterrupt
        return clock.pause(seconds)

    point = measure(Scripted(clock, [100]), Plan(warm_up_s=1, seconds=30), clock=clock, wait=wait)
    assert point.interrupted
    assert 200 <= point.to_dict()["ok"] <= 400


def test_what_ends_by_itself_is_watched_until_all_is_answered():
    """The last of the requests that have arrived are answered late, which is what an open loop is for."""
    release = threading.Event()

    def submit(request):
        future = Future()
        threading.Thread(target=lambda: future.set_result(release.wait(60))).start()
        return future

    load = OpenLoop(submit, [{"data": 1}], [0.0, 0.0], {"kind": "open"})
    looked = []

    def wait(seconds):
        looked.append(load.ended)
        if len(looked) == 3:
            release.set()
        threading.Event().wait(0.001)

    plan = Plan(warm_up_s=1000, window_s=1000, longest_s=1000)
    assert len(measure(load, plan, wait=wait).window.latencies) == 2
    assert looked[:3] == [False] * 3


def test_the_figures_of_what_ends_by_itself_end_with_its_last_answer():
    clock = Clock()
    until = clock.now + 2.1

    class Ends(Scripted):
        ended = property(lambda self: clock.now > until)

    load = Ends(clock, [10, 10] + [0] * 58)
    found = measure(load, Plan(warm_up_s=0, seconds=30), clock=clock, wait=clock.pause)
    assert found.ok == 20
    assert found.seconds == pytest.approx(1.95)  # and not when it was seen, some time later


def test_windows_with_little_in_them_do_not_agree():
    windows = [Window(k, k + 1) for k in range(3)]
    for window in windows:
        window.latencies.extend([0.1] * 9)
    assert not agree(windows, 1.0)
    for window in windows:
        window.latencies.append(0.1)
    assert agree(windows, 0.01)


def test_windows_in_which_all_fails_agree():
    windows = [Window(k, k + 1) for k in range(3)]
    for window in windows:
        window.failed["input"] = 50
    assert agree(windows, 0.01)
    windows[1].latencies.append(0.1)
    assert not agree(windows, 1.0)


def test_random_arrays_are_what_the_text_says():
    made = random_array("uint8:4x5x3", seed=1)
    assert (made.shape, made.dtype.name) == ((4, 5, 3), "uint8")
    assert (random_array("uint8:4x5x3", seed=1) == made).all()
    assert 0 <= random_array("float32") < 1
    many = random_array("int8:20000")
    assert (many.min(), many.max()) == (-128, 127)
    assert 9_000 < random_array("bool:20000").sum() < 11_000
    with pytest.raises(InputError, match=r"dtype:shape.*got 'floot:3'"):
        random_array("floot:3")
    for much in ("float32:100000x100000x100000", "uint8:99999999999x99999999999"):
        with pytest.raises(InputError, match="does not fit into the memory"):
            random_array(much)
