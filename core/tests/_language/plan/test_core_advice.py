"""``advice`` in ``stats()``: callers wait for the instances of a node while cores are idle. In virtual time."""

from __future__ import annotations

import time

import pytest

import headrace
from headrace.blueprint import blueprint, node
from headrace_testing.virtual import virtual_time

AUTO = 'instance_num = "auto"'
PROCESS = "Process[...] gives each instance an interpreter"


def waits(share=83, has="the one instance", idle=15, cores=16):
    waited = f"callers waited {share} % of the time for {has} of 'main'"
    return f"{waited} while this process left {idle} of {cores} cores idle: "


class Work(headrace.Backend):
    """Takes a second of virtual time for a request, in which so many cores are at work."""

    cores, used_s = 1.0, 0.0

    def forward(self, batch):
        for request in batch:
            time.sleep(1)
            Work.used_s += Work.cores
            request["result"] = request["data"]


class Free(Work):
    """Says that it computes without the interpreter lock."""

    @classmethod
    def auto_instances(cls, options, device, threads):
        return threads


class Single(Free):
    @classmethod
    def most_instances(cls, options):
        return 1


class Keeps(Work):
    stateful = True


class Away(Work):
    takes = (1, 1)
    builds_elsewhere = True


class Waits(headrace.Backend):
    """Takes three seconds, and no processor time."""

    def forward(self, batch):
        time.sleep(3)
        batch[0]["result"] = batch[0]["data"]


class Holds(headrace.policies.Greedy):
    """May let requests wait though an instance is free."""

    sends_when_idle = False


@pytest.fixture
def nodes(monkeypatch):
    """Return a function that sends so many requests at once, and gives ``stats()["nodes"]`` after the last of them."""
    for cls in (Work, Free, Single, Keeps, Away, Waits, Holds):
        headrace.register(cls.__name__, cls, replace=True)
    monkeypatch.setattr(time, "process_time", lambda: Work.used_s)

    def run(*, cores=1.0, count=11, threads=16, before_s=0.0, in_turn=False, to="main", **tables):
        monkeypatch.setattr(Work, "cores", cores)
        monkeypatch.setattr(Work, "used_s", 100.0)  # it imported and built meanwhile
        with (
            virtual_time(),
            headrace.pipe({"global": {"threads": threads}, **tables}) as pipe,
        ):
            Work.used_s += before_s
            for _ in range(count if in_turn else 0):
                pipe({"data": 0})
            for future in [
                pipe.submit({"data": 0, "node_name": to}) for _ in range(0 if in_turn else count)
            ]:
                future.result()
            return pipe.stats()["nodes"]

    return run


@pytest.fixture
def advice(nodes):
    """Return a function that gives the advice for a pipeline of one node."""
    return lambda about, **keys: nodes(main=about, **keys)["main"]["advice"]


def test_auto_is_advised_where_it_gives_more_instances(advice):
    assert advice({"backend": "Free"}) == waits() + AUTO
    two = {"backend": "Free", "instance_num": 2}
    assert advice(two, cores=2, count=12) == waits(71, "the 2 instances", 12) + AUTO
    assert advice({"backend": "Free"}, cores=0.1, threads=2) == waits(idle=1, cores=2) + AUTO


def test_a_process_is_advised_where_threads_share_the_interpreter(advice):
    more = ', instance_num = "auto" uses each core'
    assert advice({"backend": "Work"}) == waits() + PROCESS + more
    auto = {"backend": "Work", "instance_num": "auto"}
    assert advice(auto) == waits() + PROCESS
    # Four that compute in turn are busy four times as long together: 0.25 of a core each.
    four = {"backend": "Work", "instance_num": 4}
    told = advice(four, cores=0.25, count=40)
    assert told == waits(82, "the 4 instances") + PROCESS + more
    widest = {"backend": "Free", "instance_num": "auto"}
    assert advice(widest, cores=1 / 16, count=170) == waits(has="the 16 instances") + PROCESS
    written = {"backend": "Free", "instance_num": 16}
    assert advice(written, cores=1 / 16, count=170) == waits(has="the 16 instances") + PROCESS
    assert advice({"backend": "Work"}, cores=2.0) is None  # it computes without the lock


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"count": 4}, id="four seconds are too few"),
        pytest.param({"cores": 9.0}, id="half of the cores are at work"),
        pytest.param({"before_s": 100.0}, id="or may have been, in what was computed before"),
        pytest.param({"threads": 1, "cores": 0.4}, id="there is one core"),
        pytest.param({"before_s": -100.0}, id="a forked process, which begins with no time"),
    ],
)
def test_nothing_is_advised_without_the_measurement(advice, keys):
    assert advice({"backend": "Free"}, **keys) is None


@pytest.mark.parametrize(
    "node",
    [
        pytest.param({"backend": "Free", "instance_num": 16}, id="nobody waits"),
        pytest.param({"backend": "Waits"}, id="it waits for a service"),
        pytest.param({"backend": "Single"}, id="it says that it carries no more"),
        pytest.param({"backend": "Keeps"}, id="it keeps state"),
        pytest.param({"backend": "Free", "device": "cuda:0"}, id="a device"),
        pytest.param(
            {"backend": "Free", "instance_num": 2, "device": ["cpu", "npu"]},
            id="a device of several",
        ),
        pytest.param({"backend": "Away[Identity]"}, id="another process computes"),
    ],
)
def test_nothing_is_advised_where_more_instances_would_not_help(advice, node):
    assert advice(node, cores=0.0 if node["backend"] == "Waits" else 1.0, count=22) is None


def test_the_wait_for_company_in_a_batch_is_not_one_for_an_instance(nodes):
    pairs = {"backend": "Free", "min": 2, "max": 2, "pad": True, "batching_timeout": 9000}
    told = nodes(main=pairs, in_turn=True)["main"]
    assert told["queue_ms"]["mean"] == pytest.approx(9000)
    assert told["advice"] is None
    patient = {"backend": "Free", "batching_timeout": 3000}  # of five seconds
    assert nodes(main=patient)["main"]["advice"] == waits(67) + AUTO
    policy = {"backend": "Free", "batch_policy": "Holds"}
    assert nodes(main=policy)["main"]["advice"] is None


def test_where_a_node_computes_elsewhere_idle_cores_are_not_known(nodes):
    told = nodes(main={"backend": "Free", "next": "away"}, away={"backend": "Away[Identity]"})
    assert {name: node["advice"] for name, node in told.items()} == {"main": None, "away": None}


def test_the_processor_time_of_other_nodes_is_not_taken_for_that_of_a_node(nodes):
    # While `service` waits for three seconds, `main` computes its next requests.
    told = nodes(
        main={"backend": "Work", "next": "service"}, service={"backend": "Waits"}, cores=3.0
    )
    assert told["service"]["queue_ms"]["mean"] > told["service"]["forward_ms"]["mean"]
    assert told["service"]["advice"] is None
    told = nodes(
        first={"backend": "Identity", "next": "main"}, main={"backend": "Work"}, to="first"
    )
    assert PROCESS in told["main"]["advice"]
    assert told["first"]["advice"] is None


def test_a_node_that_waits_for_another_one_is_not_advised(nodes):
    first = {"backend": "S[Free,Forward[node.slow]]", "instance_num": 4}
    told = nodes(main=first, slow={"backend": "Waits"}, count=40)
    assert told["main"]["queue_ms"]["mean"] > told["main"]["forward_ms"]["mean"]
    assert (told["main"]["advice"], told["slow"]["advice"]) == (None, None)


def test_an_alias_is_not_advised_but_the_node_that_answers_for_it(nodes):
    told = nodes(main={"backend": "Free"}, alias={"backend": "Forward[node.main]"}, to="alias")
    assert told["main"]["advice"] == waits() + AUTO
    assert told["alias"]["submitted"] == 11
    assert told["alias"]["advice"] is None


def test_a_pipeline_of_plain_objects_gives_no_advice(monkeypatch):
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    with virtual_time(), headrace.Pipeline(blueprint(node("main", Free))) as pipe:
        for future in [pipe.submit({"data": 0}) for _ in range(11)]:
            future.result()
        shown = pipe.stats()["nodes"]["main"]
    assert shown["instances"][0]["busy_s"] == 11
    assert shown["advice"] is None
