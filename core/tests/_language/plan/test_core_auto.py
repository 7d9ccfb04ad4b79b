"""``instance_num = "auto"``: how many instances a node has, which of them takes a request, and what stays as it is."""

from __future__ import annotations

import logging
import threading

import pytest

import headrace
from headrace.errors import ConfigError
from headrace.policies import BestFit, Greedy
from headrace_testing.policies import PolicyQueue, Sent

THREADS = 4


class AutoNative(headrace.Backend):
    """Says that it computes without the interpreter lock."""

    max = None

    @classmethod
    def auto_instances(cls, options, device, threads):
        return threads

    def init(self, options, context):
        self.context = context

    def forward(self, batch):
        for request in batch:
            request["result"] = self.context.threads


class AutoWide(AutoNative):
    """Is quicker with more threads, and waits while its request says so."""

    wide = True

    def forward(self, batch):
        for request in batch:
            if isinstance(request["data"], Held):
                request["data"].run(self)
        super().forward(batch)


class AutoSingle(AutoNative):
    """Allows one instance in a process, and loads a file."""

    class Options(headrace.Options):
        """Its file."""

        weights: headrace.FilePath | None = None

    @classmethod
    def most_instances(cls, options):
        return 1


class AutoKeeps(AutoNative):
    """Keeps state between requests."""

    stateful = True


class AutoOnDevice(AutoNative):
    """Computes on a device, whatever the node says."""

    @classmethod
    def auto_instances(cls, options, device, threads):
        return 1


class AutoElsewhere(headrace.Backend):
    """Builds what stands in it elsewhere."""

    takes = 1
    builds_elsewhere = True

    def forward(self, batch):
        """Is never called."""


class AutoCluster(AutoElsewhere):
    """Says how many it carries."""

    @classmethod
    def auto_instances(cls, options, device, threads):
        return 1


class AutoPython(headrace.Backend):
    """Says nothing of itself."""

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


class Held:
    """A request that runs until the test lets it end."""

    def __init__(self):
        self.running, self.end = threading.Event(), threading.Event()

    def run(self, _):
        self.running.set()
        assert self.end.wait(60)


for cls in (
    AutoNative,
    AutoWide,
    AutoSingle,
    AutoKeeps,
    AutoOnDevice,
    AutoPython,
    AutoElsewhere,
    AutoCluster,
):
    headrace.register(cls.__name__, cls, replace=True)


def nodes(config, threads=THREADS):
    return headrace.explain({"global": {"threads": threads}, **config})["nodes"]


def node(threads=THREADS, **keys):
    return nodes({"main": {"instance_num": "auto", **keys}}, threads)["main"]


@pytest.mark.parametrize(
    ("keys", "number", "threads", "why"),
    [
        ({"backend": "AutoNative"}, 4, 1, "4 of one thread"),
        ({"backend": "AutoWide"}, 5, 1, "4 of one thread, and one of 4 for a request alone"),
        ({"backend": "S[AutoNative,AutoPython]"}, 4, 1, "4 of one thread"),
        ({"backend": "AutoPython"}, 1, 4, "AutoPython may hold the interpreter lock"),
        ({"backend": "S[AutoPython,Identity]"}, 1, 4, "Process[...] gives each instance"),
        ({"backend": "S[AutoNative,AutoKeeps]"}, 1, 4, "AutoKeeps keeps state between requests"),
        ({"backend": "S[AutoNative,AutoSingle]"}, 1, 4, "AutoSingle carries 1"),
        ({"backend": "S[AutoNative,AutoOnDevice]"}, 1, 4, "AutoOnDevice carries 1"),
        ({"backend": "AutoElsewhere[AutoPython]"}, 4, 1, "4 of one thread"),
        ({"backend": "AutoElsewhere[AutoWide]"}, 4, 1, "4 of one thread"),
        ({"backend": "AutoElsewhere[AutoKeeps]"}, 1, 4, "AutoKeeps keeps state"),
        ({"backend": "AutoElsewhere[AutoSingle]"}, 1, 4, "AutoSingle carries 1"),
        ({"backend": "AutoCluster[AutoNative]"}, 1, 4, "AutoCluster carries 1"),
        ({"backend": "AutoWide", "device": "cuda:0"}, 1, 4, "one instance on cuda:0"),
        ({"backend": "AutoWide", "device": "cpu"}, 5, 1, "4 of one thread, and one of 4"),
    ],
)
def test_a_node_has_what_its_classes_carry(keys, number, threads, why):
    told = node(**keys)
    assert (told["instance_num"], told["threads"]) == (number, threads)
    assert told["auto"].startswith(why) or why in told["auto"]


def test_one_thread_gives_one_instance():
    assert node(threads=1, backend="AutoWide")["instance_num"] == 1


def test_the_nodes_share_the_threads_and_a_written_number_counts_as_it_is():
    auto = {"backend": "AutoWide", "instance_num": "auto"}
    told = nodes(
        {"a": {**auto, "next": "b"}, "b": {"backend": "AutoNative", "instance_num": "auto"}}
    )
    assert [one["instance_num"] for one in told.values()] == [3, 2]
    told = nodes({"a": {**auto, "next": "b"}, "b": {"backend": "AutoNative", "instance_num": 3}})
    assert [(one["instance_num"], one["threads"]) for one in told.values()] == [(2, 1), (3, 1)]
    told = nodes({"global": {"threads": 8, "instance_num": "auto"}, "a": {"backend": "AutoNative"}})
    assert told["a"]["instance_num"] == 8


def test_an_alias_has_no_instances_of_its_own():
    told = nodes(
        {
            "global": {"threads": THREADS, "instance_num": "auto"},
            "a": {"backend": "AutoNative"},
            "b": {"backend": "Forward[node.a]"},
        }
    )
    assert (told["a"]["instance_num"], told["b"]["instance_num"]) == (4, 1)


def test_what_was_built_says_the_same_as_the_plan_and_the_log_says_what_one_more_costs(
    tmp_path, caplog
):
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(3_000_000))
    with caplog.at_level(logging.INFO, "headrace.build"):
        with pipe_of("AutoSingle", weights=str(weights)) as pipe:
            told = pipe.describe()["nodes"]["main"]
        with pipe_of():
            pass
    assert (told["instance_num"], told["threads"]) == (1, 4)
    assert told["auto"] == "AutoSingle carries 1, another would load 3 MB more"
    short, usual = (record for record in caplog.records if "'auto' gives" in record.message)
    assert short.levelno == logging.WARNING
    assert "gives 1: AutoSingle carries 1, another would load 3 MB" in short.message
    assert usual.levelno == logging.INFO


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"instance_num": "Auto"}, "expected a number or 'auto', got \"Auto\""),
        ({"instance_num": "full"}, "expected a number or 'auto'"),
        ({"instance_num": 0}, "greater than or equal to 1"),
        ({"instance_num": True}, "a bool is no number"),
        ({"instance_num": 1.5}, "valid integer"),
        (
            {"instance_num": "auto", "device": ["cuda:0", "cuda:1"]},
            "does not go with a list of devices: instance_num = 2 has one instance on each",
        ),
    ],
)
def test_a_wrong_value_says_what_is_right(keys, said):
    with pytest.raises(ConfigError) as error:
        headrace.explain({"backend": "AutoNative", **keys})
    assert said in str(error.value)


def pipe_of(backend="AutoWide", **keys):
    main = {"backend": backend, "instance_num": "auto", **keys}
    return headrace.pipe({"global": {"threads": THREADS}, "main": main})


def held(pipe):
    """Send a request that runs until it is let go, and return it with its future."""
    request = Held()
    future = pipe.submit({"data": request})
    assert request.running.wait(60)
    return request, future


def threads_of(future):
    return future.result(60)["result"]


@pytest.mark.parametrize("send", ["call", "submit", "list"])
def test_a_request_alone_has_all_threads(send):
    with pipe_of() as pipe:
        for _ in range(3):
            request = {"data": 0}
            if send == "call":
                pipe(request)
            elif send == "submit":
                request = pipe.submit(request).result(60)
            else:
                pipe([request])
            assert request["result"] == THREADS


def test_requests_beside_another_have_one_thread_each_until_the_node_is_idle_again():
    with pipe_of() as pipe:
        alone, first = held(pipe)
        others = [held(pipe) for _ in range(THREADS)]
        waits = pipe.submit({"data": 0})
        assert len(pipe.stats()["nodes"]["main"]["instances"]) == THREADS + 1
        alone.end.set()
        assert threads_of(first) == THREADS
        assert not waits.done()  # the wide instance takes nothing while another runs
        others[0][0].end.set()
        assert threads_of(others[0][1]) == threads_of(waits) == 1
        assert pipe({"data": 0})["result"] == 1
        for request, future in others[1:]:
            request.end.set()
            assert threads_of(future) == 1
        assert pipe({"data": 0})["result"] == THREADS


def test_the_wide_instance_serves_where_no_other_is_there():
    contexts = []

    class AutoLeaves(AutoWide):
        def init(self, options, context):
            super().init(options, context)
            contexts.append(context)

    headrace.register("AutoLeaves", AutoLeaves, replace=True)
    with pipe_of("AutoLeaves") as pipe:
        for context in contexts[:-1]:
            context.health.away()
        assert [pipe({"data": 0})["result"] for _ in range(3)] == [THREADS] * 3
        contexts[-1].health.away()
        contexts[0].health.back()
        assert [pipe({"data": 0})["result"] for _ in range(3)] == [1] * 3
        contexts[-1].health.back()
        assert pipe({"data": 0})["result"] == THREADS


def test_a_policy_of_your_own_sees_which_instance_is_wide():
    seen = []

    class Narrow(BestFit):
        def choose(self, weight, free):
            seen.append([one.wide for one in free])
            return next((one for one in free if not one.wide), None)

    headrace.register("narrow", Narrow, replace=True)
    with pipe_of(dispatch_policy="narrow") as pipe:
        assert pipe({"data": 0})["result"] == 1
    assert sorted(seen[0]) == [False] * THREADS + [True]


class AutoCounts(AutoNative):
    """Gives the size of its batch."""

    def forward(self, batch):
        for request in batch:
            request["result"] = len(batch)


headrace.register("AutoCounts", AutoCounts, replace=True)


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ({"instance_num": "auto"}, [2, 2, 1, 1, 1]),
        ({"instance_num": "auto", "batching_timeout": 1e8}, [2, 2, 1, 1, 1]),
        ({"instance_num": THREADS}, [5] * 5),
    ],
)
def test_idle_instances_share_what_waits(keys, sizes):
    config = {"global": {"threads": THREADS}, "main": {"backend": "AutoCounts", "max": 8, **keys}}
    with headrace.pipe(config) as pipe:
        requests = [{"data": n} for n in range(5)]
        pipe(requests)
    assert [request["result"] for request in requests] == sizes


def cut(policy, waiting, now=0.0, **queue):
    view = PolicyQueue(policy, [Sent(0.0, {}) for _ in range(waiting)])
    for name, value in queue.items():
        setattr(view, name, value)
    instance = type("One", (), {"min": queue.get("least", 1), "max": 8})()
    return policy.cut(view, instance, now)


def test_who_shares_takes_no_fewer_than_an_instance_needs_and_does_not_linger():
    policy = Greedy(Greedy.Options(batching_timeout=1000))
    policy.spreads = True
    assert cut(policy, 5, free=2, running=1).take == 3
    assert cut(policy, 5, free=1, running=3).take == 5
    assert cut(policy, 20, free=2).take == 8
    assert cut(policy, 4, free=4, least=2).take == 2
    waits = cut(policy, 1, free=4, least=2)
    assert (waits.take, waits.wake_at) == (0, 1.0)
    assert cut(Greedy(Greedy.Options(batching_timeout=1000)), 5, free=2, running=1).take == 0
