"""The simulation, against a slow and obvious one, known results, and the policies' own decisions."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headrace
from headrace.errors import InputError, SetupError
from headrace.policies import BatchPolicy, Cut, DispatchPolicy
from headrace_cli.app import app
from headrace_observe.bench.arrivals import poisson
from headrace_observe.memory import Memory, NodeFacts, Visit
from headrace_observe.simulate.from_config import simulation_of
from headrace_observe.simulate.service_times import ServiceTimes, read_times
from headrace_testing import Sent, play

EVERY = 10**6


def fixed(per_size):
    """Times in whole seconds, so that all times of the simulation are exact."""
    return {"main": ServiceTimes("main", {n: [1000 * t] for n, t in per_size.items()}, "here")}


def simulated(config, times, seed=0):
    return simulation_of(headrace.PipelineConfig.load(config), times, seed)


def latencies_of(run):
    return [latency for _, latency in run.seen.answers]


def slow(arrivals, instances, most, linger, size_time, room):
    """Greedy, second by second: who ends, who comes, what is due. Give latencies, batches, refusals."""
    queue, running = [], []
    batches_of = [0] * instances
    free = list(range(instances))
    latencies, batches, refused = [], [], 0
    second = 0
    left = list(arrivals)

    def look():
        while queue and free:
            full = len(queue) >= most
            waited = second - queue[0] >= linger
            if not (full or waited or not running):
                return
            one = min(free, key=lambda k: (batches_of[k], k))
            free.remove(one)
            taken = queue[:most]
            del queue[:most]
            batches.append(len(taken))
            running.append((second + size_time[len(taken)], one, taken))

    while left or queue or running:
        for end in [r for r in running if r[0] == second]:
            running.remove(end)
            free.append(end[1])
            batches_of[end[1]] += 1
            look()
            latencies.extend(second - came for came in end[2])
        while left and left[0] == second:
            left.pop(0)
            if len(queue) >= room:
                refused += 1  # nobody looks because of it
            else:
                queue.append(second)
                look()
        look()
        second += 1
    return sorted(latencies), batches, refused


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=25).map(sorted),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 5),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
    st.integers(1, 6),
)
def test_it_agrees_with_a_slow_and_obvious_one(arrivals, instances, most, linger, times, room):
    # None arrives as another comes or a batch ends: who is first then is left to the threads.
    arrivals = [32 * second + number for number, second in enumerate(arrivals)]
    linger, size_time = 32 * linger, {size: 32 * time for size, time in enumerate(times, 1)}
    config = {
        "backend": "Identity",
        "max": most,
        "instance_num": instances,
        "batching_timeout": 1000 * linger,
        "queue_size": room,
        "queue_full": "reject",
    }
    run = simulated(config, fixed(size_time))
    # One more request long after all others: everything before it is inside the measured span.
    run.open_loop([*map(float, arrivals), float(EVERY)], {"kind": "open", "rate": 1}, 0)
    latencies, batches, refused = slow(arrivals, instances, most, linger, size_time, room)
    last = size_time[1]
    assert sorted(latencies_of(run)) == sorted([*latencies, last])
    assert [size for _, size in run.seen.batches["main"]] == [*batches, 1]
    assert len(run.seen.failed) == refused


def test_a_closed_loop_of_one_client_is_one_batch_after_the_other():
    found = simulated({"backend": "Identity"}, fixed({1: 2})).closed_loop(1, 100, 10).to_dict()
    assert found["throughput_rps"] == pytest.approx(0.5, rel=0.02)
    assert found["latency_ms"]["p50"] == found["latency_ms"]["max"] == 2000
    assert found["utilisation"] == {"main": 1.0}


@pytest.mark.slow
def test_waiting_agrees_with_the_formula_of_a_queue_with_one_server():
    """M/D/1: the mean wait is rho / (2 mu (1 - rho)), by Pollaczek and Khinchine."""
    rate, service = 0.7, 1.0
    run = simulated({"backend": "Identity", "queue_size": EVERY}, fixed({1: 1}))
    arrivals = itertools.islice(poisson(rate, 5), 25_000)
    found = run.open_loop(arrivals, {"kind": "open", "rate": rate}, 1000).to_dict()
    expected = service + rate * service / (2 * (1 - rate))
    assert found["latency_ms"]["mean"] / 1000 == pytest.approx(expected, rel=0.05)


def test_in_an_open_loop_the_sender_the_runner_and_who_waits_for_the_answer_wake_up():
    times = {"main": ServiceTimes("main", {1: [4.0]}, "here", wakes_ms=[0.1] * 9 + [1.1])}
    arrivals = [1.0 * k for k in range(1, 4001)]  # so far apart that none meets another
    found = simulated({"backend": "Identity"}, times).open_loop(arrivals, {"kind": "open"}, 0)
    assert found.latency_ms["mean"] == pytest.approx(4.0 + 3 * 0.2, rel=0.01)
    assert found.latency_ms["p50"] == pytest.approx(4.3)  # 0.9 ** 3 have no long one
    assert found.latency_ms["max"] == pytest.approx(7.3)
    closed = simulated({"backend": "Identity"}, times).closed_loop(1, 100, 10)
    assert closed.latency_ms["mean"] == 4.0


def test_a_sender_that_is_late_loses_no_request_and_latencies_count_from_what_was_meant():
    times = {"main": ServiceTimes("main", {1: [1000.0]}, "here", wakes_ms=[5000.0])}
    config = {"backend": "Identity", "queue_size": EVERY}
    found = simulated(config, times).open_loop([0.0, 0.0, 0.0], {"kind": "open"}, 0).to_dict()
    assert found["ok"] == 3
    latency = found["latency_ms"]
    assert latency["max"] >= latency["p50"] + 1000 - 1e-6  # one after the other on one instance


def visits(node, instance, started, ended, *requests, code="ok"):
    """Give what is remembered of a batch, whose requests are times of arrival and cut."""
    for arrival, cut in requests:
        about = (len(requests), len(requests), "", 0, None, code, 1)
        yield Visit(None, node, instance, arrival, cut, started, ended, *about)


def times_in(tmp_path, *batches):
    """Write what is remembered of batches as `bench --save-times` does, and read the times in it."""
    found = [one for batch in batches for one in batch]
    nodes = dict.fromkeys([one.node for one in found], NodeFacts(2, False, None))
    Memory(found, [], nodes).write(tmp_path / "times.jsonl")
    return read_times(tmp_path / "times.jsonl")


def test_times_of_batches_have_how_long_threads_wake_up(tmp_path):
    def ran(node, started, *requests):
        return visits(node, 0, started, started + 0.004, *requests)

    found = times_in(
        tmp_path,
        ran("main", 1.0, (1.0, 1.0)),  # its caller ran it itself
        ran("main", 2.00001, (1.9, 2.0)),  # the thread that cut it ran it
        ran("main", 3.0001, (2.8, 3.0), (2.9, 3.0)),
        ran("main", 4.0003, (3.9, 4.0)),
        ran("main", 5.0002, (4.9, 5.0)),
        ran("other", 1.0, (1.0, 1.0)),
    )
    wakes_s = found["main"].wakes_s
    assert wakes_s == sorted(wakes_s)
    third = len(wakes_s) // 6
    ends = [wakes_s[third], wakes_s[3 * third], wakes_s[5 * third]]
    assert ends == pytest.approx([0.0001, 0.0002, 0.0003])
    assert found["other"].wakes_s == []
    assert found["main"].requests == 6
    assert found["main"].seconds(2, 0.5) == pytest.approx(0.004)


def test_the_time_from_batch_to_batch_counts_for_what_waited(tmp_path):
    def ran(instance, arrival, started, code="ok"):
        request = (arrival, started - 0.0001)
        return visits("main", instance, started, started + 0.004, request, code=code)

    times = times_in(
        tmp_path,
        ran(0, 0.9, 1.0),
        ran(0, 1.003, 1.0045),  # waited: 0.5 ms
        ran(1, 1.0, 1.1),  # the first of its instance
        ran(0, 1.5, 1.6),  # came later
        ran(0, 1.606, 1.609, "input"),
        ran(0, 1.610, 1.6135),  # waited for the one that failed: 0.5 ms
        ran(0, 1.614, 1.6225),  # the policy lingered for 5 ms, and woke the thread
    )
    assert times["main"].between_s == pytest.approx([0.0005] * len(times["main"].between_s))
    assert times["main"].wakes_s == pytest.approx([0.0001] * len(times["main"].wakes_s))

    def foretold(loop):
        by_hand = ServiceTimes("main", {1: [4.0]}, "here", between_ms=[1.0])
        return loop(simulated({"backend": "Identity", "max": 1}, {"main": by_hand}))

    alone = foretold(lambda run: run.closed_loop(1, 100, 10))
    assert alone.throughput_rps == pytest.approx(250)  # nothing waits
    busy = foretold(lambda run: run.closed_loop(3, 1000, 100))
    assert busy.throughput_rps == pytest.approx(200)
    spaced = foretold(lambda run: run.open_loop([k / 100 for k in range(200)], {"kind": "open"}, 0))
    assert spaced.latency_ms["max"] == pytest.approx(4.0)


def test_clients_that_have_their_answers_send_their_next_requests_one_after_the_other(tmp_path):
    def ran(started, *arrivals):
        requests = [(arrival, started) for arrival in arrivals]
        return visits("main", 0, started, started + 0.010, *requests)

    times = times_in(
        tmp_path,
        ran(1.0, 0.9990, 0.9995),
        # 0.2 ms after that batch, and 0.3 ms after the request before
        ran(1.0110, 1.0102, 1.0105),
        ran(1.5, 1.0214, 1.4),  # 0.4 ms after that batch; the other client paused
        ran(2.0, 1.6),  # no client sent its request because of the batch before
    )
    turns_s = times["main"].turns_s
    assert [turns_s[len(turns_s) * part // 6] for part in (1, 3, 5)] == pytest.approx(
        [0.0002, 0.0003, 0.0004]
    )

    def foretold(clients, **more):
        times = {"main": ServiceTimes("main", {1: [10.0], 4: [10.0]}, "here", turns_ms=[1.0])}
        return simulated({"backend": "Identity", **more}, times).closed_loop(clients, 1000, 100)

    assert foretold(1).throughput_rps == pytest.approx(1 / 0.011, rel=0.01)
    # A batch waits for all four clients, which come 1, 2, 3 and 4 ms after the end of the batch before.
    together = foretold(4, batch_sizes=[4], max=4, batching_timeout=1000)
    assert together.throughput_rps == pytest.approx(4 / 0.014, rel=0.01)
    assert together.latency_ms["mean"] == pytest.approx(14, rel=0.01)


def test_batches_that_share_processors_take_longer_beside_others(tmp_path):
    instances = itertools.cycle(range(2))

    def ran(started, ended):
        return visits("main", next(instances), started, ended, (started, started))

    every = []
    for turn in range(30):
        # Five alone, then ten of which each is beside the end of one and the beginning of another.
        every += [ran(turn + 0.1 * k, turn + 0.1 * k + 0.010) for k in range(5)]
        every += [ran(turn + 0.6 + 0.008 * k, turn + 0.616 + 0.008 * k) for k in range(10)]
    times = times_in(tmp_path, *every)
    assert times["main"].requests == 450
    config = {"backend": "Identity", "instance_num": 2}
    for clients, p50_ms in ((1, 10.0), (2, 16.0)):
        found = simulated(config, times).closed_loop(clients, 2000, 200).to_dict()
        assert found["latency_ms"]["p50"] == pytest.approx(p50_ms)


def test_a_time_beside_more_batches_than_were_measured_is_that_beside_the_most():
    beside = {1: {0: [2.0], 2: [6.0]}}
    times = ServiceTimes("main", {1: [2.0], 3: [4.0]}, "here", beside=beside)
    found = [1000 * times.seconds(1, 0.5, beside) for beside in (0, 1, 2, 9)]
    assert found == pytest.approx([2, 2, 6, 6])
    assert 1000 * times.seconds(2, 0.5, 2) == pytest.approx(5)


def test_a_line_of_nodes_joins_its_branches():
    config = {
        "a": {"backend": "Identity", "next": "b,c"},
        "b": {"backend": "Identity", "next": "d"},
        "c": {"backend": "Identity", "next": "d"},
        "d": {"backend": "Identity", "map": "b[result:data],c[result:x]"},
    }
    took = {"a": 1, "b": 2, "c": 5, "d": 1}
    times = {n: ServiceTimes(n, {1: [1000 * t]}, "here") for n, t in took.items()}
    run = simulated(config, times)
    run.open_loop([0.0, 100.0], {"kind": "open", "rate": 1}, 0)
    assert latencies_of(run) == [7.0, 7.0]
    assert {n: len(b) for n, b in run.seen.batches.items()} == dict.fromkeys(took, 2)


def test_who_waits_outside_of_a_full_queue_loses_no_time():
    config = {"backend": "Identity", "queue_size": 1}
    run = simulated(config, fixed({1: 1}))
    run.open_loop([0.0] * 5, {"kind": "open", "rate": 1}, 0)
    assert latencies_of(run) == [1, 2, 3, 4, 5]
    assert run.seen.failed == []


def test_batches_are_filled_up_to_the_sizes_that_a_node_allows():
    config = {"backend": "Identity", "batch_sizes": [2, 4], "pad": True}
    run = simulated(config, fixed({2: 5, 4: 7}))
    run.open_loop([0.0, 0.0, 0.0, 0.0, 50.0], {"kind": "open", "rate": 1}, 0)
    # The four that come in one moment run together; the last one alone, filled up to 2.
    assert sorted(latencies_of(run)) == [5.0, 7.0, 7.0, 7.0, 7.0]


class SimulatedCarries(headrace.Backend):
    """Carries an instance for each thread."""

    max = 8
    auto_instances = classmethod(lambda cls, options, device, threads: threads)

    def forward(self, batch):
        """Is never called."""


class SimulatedWide(SimulatedCarries):
    """Is quicker with more threads."""

    wide = True


@pytest.mark.parametrize(("number", "sizes"), [(4, [1, 7]), ("auto", [1, 2, 2, 3])])
@pytest.mark.parametrize("cls", [SimulatedCarries, SimulatedWide])
def test_instances_that_auto_gives_share_what_waits(cls, number, sizes, caplog):
    """Eight requests come in one second, where each batch takes two, however large it is."""
    headrace.register(cls.__name__, cls, replace=True)
    keys = {"backend": cls.__name__, "batching_timeout": 1000, "instance_num": number}
    run = simulated({"global": {"threads": 4}, "main": keys}, fixed({1: 2, 8: 2}))
    run.open_loop([0, *[1.0] * 7], {}, 0)
    assert sorted(batches_of(run)) == sizes
    assert [*caplog.messages] == []


def batches_of(run):
    return [size for _, size in run.seen.batches["main"]]


def test_a_batch_that_was_cut_is_joined_by_nobody_while_its_thread_wakes_up():
    # One request waits for company while another one runs alone. As that ends, the batch of the one that waits is cut
    # at once, and the next request waits in its turn.
    config = {"backend": "Identity", "max": 8, "instance_num": 2, "batching_timeout": 50_000}
    run = simulated(config, fixed({1: 45, 2: 50}))
    run.open_loop([0.0, 1.0, 45.001, 90.001], {"kind": "open", "rate": 1}, 0)
    assert batches_of(run) == [1] * 4
    assert [at for at, _ in run.seen.batches["main"]] == [45 * k for k in range(4)]


def test_of_five_clients_four_run_together():
    """After a long batch the one that waits has company: the callers that were just answered have a moment to come again."""
    config = {"backend": "Identity", "max": 4}
    run = simulated(config, fixed(dict.fromkeys(range(1, 5), 10)))
    run.closed_loop(5, 200, 0)
    assert batches_of(run)[:40] == [4] * 40


def test_a_request_whose_time_is_over_fails_waiting_or_running():
    config = {"backend": "Identity", "timeout_ms": 15_000}
    run = simulated(config, fixed({1: 10}))
    run.open_loop([0.0, 1.0, 2.0], {"kind": "open", "rate": 1}, 0)
    assert latencies_of(run) == [10.0]
    assert run.seen.failed == [(16.0, "deadline"), (17.0, "deadline")]
    assert [at for at, _ in run.seen.batches["main"]] == [0.0, 10.0]  # the third never ran


def test_a_client_whose_request_is_late_sends_the_next():
    config = {"backend": "Identity", "timeout_ms": 4_000}
    found = simulated(config, fixed({1: 10})).closed_loop(2, 20, 0).to_dict()
    assert found["failed"]["deadline"] >= 18
    assert found["ok"] == 0


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_node_with_or_runs_as_often_as_when_its_times_were_measured(share):
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Identity", "or": True, "next": "c"},
        "c": {"backend": "Identity"},
    }
    times = {
        "a": ServiceTimes("a", {1: [1000]}, "here", requests=400),
        "b": ServiceTimes("b", {1: [5000]}, "here", requests=int(400 * share)),
        "c": ServiceTimes("c", {1: [1000]}, "here"),
    }
    run = simulated(config, times)
    run.open_loop([100.0 * k for k in range(2000)], {"kind": "open", "rate": 0.01}, 0)
    taken = {latency: latencies_of(run).count(latency) for latency in (2.0, 7.0)}
    assert sum(taken.values()) == 2000
    assert taken[7.0] / 2000 == pytest.approx(share, abs=0.03)


def test_a_node_with_or_needs_counts():
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Identity", "or": True},
    }
    times = {name: ServiceTimes(name, {1: [1]}, "x") for name in "ab"}
    with pytest.raises(InputError, match=r"'[ab]' runs, on which `or`.*--save-times"):
        simulated(config, times)
    never = {**counted(a=100), "b": ServiceTimes("b", {}, "x", 0)}  # no request ran there
    found = simulated(config, never).closed_loop(1, 200, 20).to_dict()
    assert found["latency_ms"]["max"] == pytest.approx(1)
    with pytest.raises(InputError, match="no batch of the node 'b'"):
        simulated({"backend": "Identity"}, {"main": never["b"]}).closed_loop(1, 2, 0)


def counted(**counts):
    """Return times of 1 ms at a node called a, else 2 ms, whatever the size, with requests as given."""
    return {
        name: ServiceTimes(name, {size: [1 if name == "a" else 2] for size in (1, 4)}, "x", count)
        for name, count in counts.items()
    }


@pytest.mark.parametrize(("most", "ms"), [(4, 1 + 2), (1, 1 + 3 * 2)])
def test_each_element_of_a_request_runs_and_the_request_ends_with_the_last(most, ms):
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Identity", "each": "boxes", "max": most, "next": "c"},
        "c": {"backend": "Identity"},
    }
    point = simulated(config, counted(a=100, b=300, c=100)).closed_loop(1, 200, 20)
    found = point.to_dict()
    assert found["latency_ms"]["p50"] == found["latency_ms"]["max"] == pytest.approx(ms + 2)
    assert found["batch_size"]["b"]["mean"] == min(3, most)


def test_elements_of_several_requests_share_batches_and_are_as_many_as_were_counted():
    config = {
        "a": {"backend": "Identity", "next": "b", "instance_num": 8},
        "b": {"backend": "Identity", "each": "boxes", "max": 4},
    }
    run = simulated(config, counted(a=1000, b=1250))
    found = run.closed_loop(40, 4000, 400).to_dict()
    assert found["batch_size"]["b"]["mean"] > 3.5
    # 1.25 elements a request, four in a batch of 2 ms.
    assert found["throughput_rps"] == pytest.approx(4 / 0.002 / 1.25, rel=0.1)


def test_elements_that_are_late_fail_their_request_once():
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": "Identity", "each": "boxes", "timeout_ms": 3},
    }
    run = simulated(config, counted(a=100, b=300))
    run.open_loop([0.01 * k for k in range(100)], {"kind": "open", "rate": 100}, 0)
    assert [code for _, code in run.seen.failed] == ["deadline"] * 100
    assert run.seen.answers == []


class Pairs(BatchPolicy):
    """Two at a time, and what is left over after ten seconds."""

    def cut(self, queue, instance, now):
        if len(queue) >= 2 or now >= queue[0].arrival + 10:
            return Cut(min(len(queue), 2))
        return Cut(0, wake_at=queue[0].arrival + 10)


class Broken(BatchPolicy):
    """Fails."""

    def cut(self, queue, instance, now):
        raise ZeroDivisionError("by nought")


def test_a_policy_of_ones_own_decides_and_is_woken():
    headrace.register("PairsToSimulate", Pairs)
    config = {"backend": "Identity", "max": 4, "batch_policy": "PairsToSimulate"}
    run = simulated(config, fixed({1: 1, 2: 1}))
    run.open_loop([0.0, 3.0, 5.0], {"kind": "open", "rate": 1}, 0)
    assert latencies_of(run) == [4.0, 1.0, 11.0]


def test_a_policy_of_a_file_that_the_configuration_imports_decides(tmp_path):
    (tmp_path / "policies.py").write_text(
        "import headrace\nfrom headrace.policies import BatchPolicy, Cut\n\n\n"
        "@headrace.register\nclass OneByOne(BatchPolicy):\n"
        "    def cut(self, queue, instance, now):\n        return Cut(1)\n"
    )
    (tmp_path / "line.toml").write_text(
        'import = ["policies.py"]\nbackend = "Identity"\nmax = 8\nbatch_policy = "OneByOne"\n'
    )
    run = simulated(tmp_path / "line.toml", fixed({1: 1}))
    run.open_loop([0.0] * 5, {"kind": "open", "rate": 1}, 0)
    assert batches_of(run) == [1] * 5


class Twos(DispatchPolicy):
    """Leaves all instances idle until two requests wait."""

    def choose(self, weight, free):
        return free[0] if weight >= 2 else None


def test_a_policy_may_leave_instances_idle():
    headrace.register("TwosToSimulate", Twos)
    config = {"backend": "Identity", "max": 4, "dispatch_policy": "TwosToSimulate"}
    run = simulated(config, fixed({1: 1, 2: 1}))
    run.open_loop([0.0, 3.0, 5.0, 6.0], {"kind": "open", "rate": 1}, 0)
    assert latencies_of(run) == [4.0, 1.0, 2.0, 1.0]


def test_a_policy_that_raises_ends_the_simulation_with_its_name():
    headrace.register("BrokenToSimulate", Broken)
    config = {"backend": "Identity", "max": 4, "batch_policy": "BrokenToSimulate"}
    with pytest.raises(InputError, match=r"Broken.*ZeroDivisionError: by nought.*'main'"):
        simulated(config, fixed({1: 1})).closed_loop(1, 10, 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backend": "Identity", "each": "boxes"}, "each cannot be simulated at the first"),
        (
            {
                "a": {"backend": "S[HasKey(k)[Repost[b]]]", "next": "b"},
                "b": {"backend": "Identity"},
            },
            "Repost cannot be simulated",
        ),
        (
            {"a": {"backend": "Identity"}, "b": {"backend": "Identity"}},
            "this has a, b",
        ),
        (
            {
                "a": {"backend": "S[Forward[node.b],Identity]", "next": "b"},
                "b": {"backend": "Identity"},
            },
            r"Forward cannot be simulated .*'a'",
        ),
        (
            {"a": {"backend": "Forward[node.b]", "next": "b"}, "b": {"backend": "Identity"}},
            "Forward cannot be simulated",
        ),
    ],
)
def test_what_is_not_simulated_is_refused(config, message):
    times = {name: ServiceTimes(name, {1: [1]}, "x") for name in ("main", "a", "b")}
    with pytest.raises(SetupError, match=message):
        simulated(config, times)


def test_sizes_between_and_above_lie_on_lines():
    times = ServiceTimes("main", {2: [10, 10], 4: [14, 18]}, "here")
    assert [times.seconds(1, p) for p in (0, 0.9)] == [0.01, 0.01]
    assert [times.seconds(3, p) for p in (0, 0.9)] == pytest.approx([0.012, 0.014])
    assert [times.seconds(6, p) for p in (0, 0.9)] == pytest.approx([0.018, 0.026])
    assert times.extrapolated == {1, 6}
    with pytest.raises(InputError, match=r"a second size, or .* --set .*\.max="):
        ServiceTimes("main", {1: [1]}, "here").seconds(2, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        (r"[]", "should be an object"),
        ("{}", "at least 1 item"),
        ('{"main": {"0": 1}}', "main: 0: "),
        ('{"main": {"1": "fast"}}', "main: 1: .*valid number"),
        ('{"main": {"1": []}}', "main: 1: .*at least 1 item"),
        ('{"main": {"1": -1}}', "main: 1: .*greater than or equal to 0"),
        ('{"main": {"1": 0, "4": [0, 0.0]}}', "main: all times are 0"),
        ('{"nodes": {"main": {"1": 2}}}', "nodes: main: .*valid integer"),
    ],
)
def test_times_that_cannot_be_read_are_refused_with_the_place(tmp_path, text, message):
    file = tmp_path / "times.json"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_times(file)


def test_the_command_foretells_and_says_what_it_covers(tmp_path):
    file = tmp_path / "times.json"
    file.write_text('{"main": {"1": 2.0, "8": [4.0, 4.4]}}')
    args = ["simulate", "Identity", "--set", "max=8", "--times", str(file), "--requests", "2000"]
    done = CliRunner().invoke(app, [*args, "--clients", "1,40", "--rate", "100", "--json"])
    assert done.exit_code == 0, done.output
    points = json.loads(done.stdout)["configurations"][0]["points"]
    assert points[0]["throughput_rps"] == pytest.approx(500, rel=0.01)
    assert points[1]["batch_size"]["main"]["mean"] == pytest.approx(8, rel=0.02)
    assert math.isclose(points[2]["throughput_rps"], 100, rel_tol=0.15)
    done = CliRunner().invoke(app, [*args, "--clients", "1"])
    assert "The clock: virtual" in done.stdout
    assert "100%" in done.stdout
    assert "main" not in done.stdout, "the only node needs no name"
    done = CliRunner().invoke(app, args)
    assert (done.exit_code, "--clients, --rate or --arrivals" in done.stderr) == (2, True)


def test_a_closed_loop_with_several_rhythms_says_so(tmp_path):
    """Ten clients on two instances of 8 fall into batches of 2 and 8, or of 5 and 5, by who comes first."""
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"main": {str(n): 4 + 0.5 * n for n in range(1, 9)}}))
    args = ["simulate", "Identity", "--times", str(times), "--requests", "2000"]
    for setting in ("max=8", "instance_num=2", "batching_timeout=5"):
        args += ["--set", setting]
    done = CliRunner().invoke(app, [*args, "--clients", "10,40", "--json"])
    two, one = json.loads(done.stdout)["configurations"][0]["points"]
    low, high = two["throughput_range_rps"]
    assert low <= two["throughput_rps"] <= high
    assert high > 1.03 * low
    low, high = one["throughput_range_rps"]
    assert high < 1.03 * low
    done = CliRunner().invoke(app, [*args, "--clients", "10,40"])
    assert "10 clients: " in done.stdout
    assert "by how fast threads wake up" in done.stdout
    assert "40 clients: " not in done.stdout


def test_an_interrupt_leaves_the_loads_that_were_finished_and_130(tmp_path, monkeypatch):
    from headrace_observe.commands import simulate as command

    real, calls = command.simulation_of, itertools.count()

    def interrupted(*args, **more):
        if next(calls) == 3:  # the first load is simulated three times
            raise KeyboardInterrupt
        return real(*args, **more)

    monkeypatch.setattr(command, "simulation_of", interrupted)
    file = tmp_path / "times.json"
    file.write_text('{"main": {"1": 2.0}}')
    args = ["simulate", "Identity", "--times", str(file), "--requests", "100", "--clients", "1,2"]
    done = CliRunner().invoke(app, [*args, "--json"])
    assert done.exit_code == 130
    found = json.loads(done.stdout)
    assert found["interrupted"]
    assert len(found["configurations"][0]["points"]) == 1


# Policies that pick.


class Neighbours(BatchPolicy):
    """Cuts what is of the kind of the first request; a kind of 9 is refused."""

    picks = True
    sends_when_idle = True

    def trait(self, request):
        if request["kind"] == 9:
            raise InputError(key="kind", expected="below 9")
        return request["kind"]

    def cut(self, queue, instance, now):
        assert not queue.closing
        assert queue.weight == len(queue)
        kinds = [queue[k].trait for k in range(len(queue))]
        assert queue[-1].trait == kinds[-1]
        alike = [k for k, kind in enumerate(kinds) if kind == kinds[0]]
        return Cut(tuple(alike[: instance.max]))


KINDS = [{"kind": kind} for kind in range(3)]


def picking(most, like=KINDS, seed=0, instances=1, size_time=2.37):
    headrace.register("Neighbours", Neighbours, replace=True)
    config = {
        "backend": "Identity",
        "max": most,
        "instance_num": instances,
        "batch_policy": "Neighbours",
    }
    times = fixed(dict.fromkeys(range(1, 300), size_time))
    return simulation_of(headrace.PipelineConfig.load(config), times, seed, 0.0, like)


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.integers(0, 40), min_size=1, max_size=25).map(sorted),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(0, 5),
)
def test_a_policy_that_picks_agrees_with_a_node_on_another_clock(arrivals, instances, most, seed):
    run = picking(most, seed=seed, instances=instances)
    drawn = random.Random(seed + 1)  # as the simulation draws them
    sent = [Sent(float(at), {"kind": drawn.randrange(3), "at": float(at)}) for at in arrivals]
    run.open_loop([*map(float, arrivals), float(EVERY)], {"kind": "open", "rate": 1}, 0)
    played = play(Neighbours(), sent, runs_s=2.37, instance_num=instances, max=most)
    latencies = [at + 2.37 - one["at"] for at, batch in played.batches for one in batch]
    assert sorted(latencies_of(run)) == pytest.approx(sorted([*latencies, 2.37]))
    assert [size for _, size in run.seen.batches["main"]] == [
        *(len(batch) for _, batch in played.batches),
        1,
    ]


def test_a_policy_that_picks_sees_256_requests_and_serves_all():
    run = picking(300, like=[{"kind": 0}], size_time=1000.0)
    run.open_loop([0.0, *[1.0] * 600], {"kind": "open"}, 0)
    assert [size for _, size in run.seen.batches["main"]] == [1, 256, 256, 88]


@pytest.mark.parametrize("clients", [1, 7])
def test_in_a_closed_loop_nobody_skips_the_queue_of_a_policy_that_picks(clients):
    found = picking(4).closed_loop(clients, 400, 0)
    assert sum(found.nodes["main"][size] * size for size in found.nodes["main"]) >= 399 - clients


def test_without_sample_requests_a_policy_that_picks_cannot_decide():
    with pytest.raises(InputError, match=r"Neighbours picks requests by what they hold.*--like"):
        picking(4, like=[])
    with pytest.raises(InputError, match=r"Neighbours refuses sample request 2: .*below 9"):
        picking(4, like=[{"kind": 1}, {"kind": 9}])
    with pytest.raises(InputError, match=r"refuses sample request 1: .*kind"):
        picking(4, like=[{"data": 1}])


def test_the_command_reads_sample_requests(tmp_path):
    headrace.register("Neighbours", Neighbours, replace=True)
    times, like = tmp_path / "times.json", tmp_path / "like.jsonl"
    times.write_text('{"main": {"1": 2.0, "8": 4.0}}')
    like.write_text('{"kind": 1}\n\n{"kind": 2}\n')
    args = ["simulate", "Identity", "--times", str(times), "--requests", "200", "--clients", "8"]
    args += ["--set", "batch_policy=Neighbours", "--set", "max=8"]
    done = CliRunner().invoke(app, [*args, "--json", "--like", str(like)])
    assert done.exit_code == 0, done.output
    (point,) = json.loads(done.stdout)["configurations"][0]["points"]
    assert max(map(int, point["batch_size"]["main"]["histogram"])) < 8
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    assert "--like FILE" in done.output
    for text, why in (("", "no request in it"), ("[1]", "expected a JSON object"), ("{", "got")):
        like.write_text(text)
        done = CliRunner().invoke(app, [*args, "--like", str(like)])
        assert done.exit_code == 2
        assert why in done.output
    assert "cannot be read" in CliRunner().invoke(app, [*args, "--like", str(tmp_path)]).output


def stepped(most=4, limit=4096, mean=10):
    """Return a simulation of requests that take ``mean`` steps of 2 ms, and its count of batches."""
    pytest.importorskip("headrace_flow")
    config = {
        "a": {"backend": "Identity", "next": "b"},
        "b": {"backend": f"Iterate(until=done,limit={limit})[Identity]", "max": most},
    }
    return simulated(config, counted(a=1000, b=1000 * mean))


def test_steps_of_iterate_are_shared_by_those_in_flight_and_places_are_filled_at_once():
    run = stepped()
    found = run.closed_loop(16, 4000, 400).to_dict()
    assert found["batch_size"]["b"]["mean"] > 0.97 * 4
    # Ten steps a request, four requests in a step of 2 ms.
    assert found["throughput_rps"] == pytest.approx(4 / 0.002 / 10, rel=0.05)
    assert sum(size for _, size in run.seen.batches["b"]) == pytest.approx(40_000, rel=0.05)


def test_a_request_alone_takes_its_steps_one_after_the_other():
    found = stepped().closed_loop(1, 2000, 0).to_dict()
    assert found["latency_ms"]["mean"] == pytest.approx(1 + 10 * 2, rel=0.05)
    assert found["latency_ms"]["p99"] == pytest.approx(1 + 2 * 44, rel=0.15)  # 0.9**44 is 0.01


def test_the_limit_of_iterate_fails_those_that_take_more_steps():
    run = stepped(limit=5)
    run.closed_loop(16, 4000, 0)
    assert {code for _, code in run.seen.failed} == {"limit"}
    assert len(run.seen.failed) == pytest.approx(4000 * 0.9**5, rel=0.05)
    assert len(run.seen.failed) + len(run.seen.answers) == 4000


def test_iterate_at_the_first_node_says_what_is_missing():
    pytest.importorskip("headrace_flow")
    with pytest.raises(SetupError, match="Iterate cannot be simulated at the first node"):
        simulated({"backend": "Iterate(until=done)[Identity]"}, counted(main=1))
