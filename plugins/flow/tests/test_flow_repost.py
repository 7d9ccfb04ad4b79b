"""Repost: a request that leaves the way after one node and goes on at another."""

from __future__ import annotations

import asyncio
import threading

import pytest

import headrace
from headrace import errors

WAIT_S = 60.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


def backend(name, function):
    """Register a backend that computes ``result`` from the whole request, or gives none."""

    def forward(self, batch):
        for request in batch:
            result = function(request)
            if result is not None:
                request["result"] = result

    headrace.register(name, type(name, (headrace.Backend,), {"forward": forward}), replace=True)


@pytest.fixture(autouse=True)
def backends():
    backend("Inc", lambda r: r["data"] + 1)
    backend("Negate", lambda r: -r["data"])
    backend("Down", lambda r: r["data"] - 1)
    backend("AtZero", lambda r: r["data"] if r["data"] == 0 else None)
    backend("Below5", lambda r: r["data"] if r["data"] < 5 else None)
    backend("Half", lambda r: r["data"] // 2)
    backend("KeysOf", lambda r: sorted(k for k in r if k != "result"))
    backend("TagT", lambda r: r.__setitem__("tag", "t") or r["data"])
    backend("Fail", lambda r: 1 // 0)


class Held(headrace.Backend):
    """Waits until the test opens it."""

    def init(self, options, context):
        type(self).entered, type(self).gate = threading.Semaphore(0), threading.Event()

    def forward(self, batch):
        self.entered.release()
        assert self.gate.wait(WAIT_S)
        for request in batch:
            request["result"] = request["data"]


@pytest.fixture
def held():
    headrace.register("Held", Held, replace=True)
    yield Held
    Held.gate.set()


def in_list(pipe, request):
    """Send a request as the only one of a list; raise its own error."""
    try:
        return pipe([request])[0]
    except errors.RequestsFailed as failed:
        (error,) = failed.errors
    raise error


WAYS = {
    "call": lambda pipe, request: pipe(request),
    "timeout": lambda pipe, request: pipe(request, timeout=WAIT_S),
    "list": in_list,
    "submit": lambda pipe, request: pipe.submit(request).result(WAIT_S),
    "async": lambda pipe, request: asyncio.run(pipe.call_async(request)),
}


class Sender:
    """Sends one request to a pipeline of its own; ``stats`` has the counts of each node afterwards."""

    def __init__(self, way):
        self.way = WAYS[way]

    def __call__(self, config, data, **keys):
        sent = {"data": data, **keys}
        with headrace.pipe(config) as pipe:
            try:
                self.way(pipe, sent)
            finally:
                assert sent["data"] is data
                self.stats = pipe.stats()["nodes"]
        return sent


@pytest.fixture(params=WAYS)
def send(request):
    """Send one request in one of the ways there are."""
    return Sender(request.param)


def problem(config):
    """Return the one problem of a configuration."""
    with pytest.raises(errors.ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    (found,) = caught.value.problems
    return found


REPAIR = {
    "check": {"backend": "S[Inc,Below5,(or)Repost[repair]]", "next": "done"},
    "done": {"backend": "Negate"},
    "repair": {"backend": "Half"},
}


def test_the_request_goes_on_at_the_other_node_and_not_at_the_next(send):
    assert send(REPAIR, 1)["result"] == -2
    assert send(REPAIR, 7)["result"] == 4  # half of the 8 that Below5 did not let pass
    assert [send.stats[n]["ok"] for n in ("check", "done", "repair")] == [1, 0, 1]


def test_a_branch_of_what_divides_may_send_on(send):
    config = {**REPAIR, "check": {"backend": "HasKey(bad)[Repost[repair],Inc]", "next": "done"}}
    assert send(config, 6)["result"] == -7
    assert send(config, 6, bad=1)["result"] == 3


def test_a_node_may_be_entered_again_until_it_is_done(send):
    config = {
        "a": {"backend": "S[Below5,(or)S[Half,Repost[a]]]", "next": "b"},
        "b": {"backend": "Negate"},
    }
    assert send(config, 64)["result"] == -4
    assert send.stats["a"]["submitted"] == send.stats["b"]["submitted"] == 1


def test_two_nodes_may_send_a_request_to_each_other(send):
    config = {
        "try": {"backend": "S[Below5,(or)Repost[fix]]", "next": "done"},
        "fix": {"backend": "S[Half,Repost[try]]"},
        "done": {"backend": "Negate"},
    }
    assert send(config, 64)["result"] == -4
    counts = [(one["submitted"], one["ok"]) for one in send.stats.values()]
    assert counts == [(5, 5), (4, 4), (1, 1)]


def test_the_dict_goes_along_with_its_keys_and_a_map_is_for_the_ordinary_way(send):
    config = {
        "a": {"backend": "S[TagT,Below5,(or)Repost[c]]", "next": "b"},
        "b": {"backend": "Negate", "next": "c"},
        "c": {"backend": "KeysOf", "map": "b[result:data]"},
    }
    assert send(config, 1, mine=1)["result"] == ["data"]
    answer = send(config, 9, mine=1)
    assert answer["result"] == ["data", "mine", "tag"]
    assert answer["tag"] == "t"


def test_branches_may_part_where_the_request_goes_on(send):
    config = {
        "a": {"backend": "S[Below5,(or)Repost[x]]"},
        "x": {"backend": "Inc", "next": "y,z"},
        "y": {"backend": "Negate", "next": "w"},
        "z": {"backend": "Half", "next": "w"},
        "w": {"backend": "Sum", "map": "y[result:data],z[result:other]"},
    }
    backend("Sum", lambda r: (r["data"], r["other"]))
    assert send(config, 2)["result"] == 2
    assert send(config, 9)["result"] == (-10, 5)


def test_a_repost_after_a_join_ends_the_way_of_all_branches(send):
    config = {
        "x": {"backend": "Identity", "next": "y,z"},
        "y": {"backend": "Inc", "next": "w"},
        "z": {"backend": "Half", "next": "w"},
        "w": {"backend": "S[Below5,(or)Repost[v]]", "map": "y[result:data],z[result:other]"},
        "v": {"backend": "KeysOf"},
    }
    assert send(config, 1)["result"] == 2
    assert send(config, 8)["result"] == ["data", "other"]


def test_a_failure_after_a_repost_names_its_node(send):
    config = {"a": {"backend": "Repost[b]"}, "b": {"backend": "Fail"}}
    with pytest.raises(errors.BackendError) as caught:
        send(config, 1)
    assert caught.value.node == "b"
    assert send.stats["b"]["failed"] == {"backend": 1}
    assert send.stats["a"]["failed"] == {}


def test_a_node_that_is_called_answers_with_what_the_other_node_gives(send):
    config = {
        "a": {"backend": "S[Forward[node.checked],Negate]", "next": "done"},
        "checked": {"backend": "S[Below5,(or)Repost[b]]"},
        "b": {"backend": "Inc", "next": "never"},
        "never": {"backend": "Fail"},
        "done": {"backend": "Inc"},
    }
    assert send(config, 1)["result"] == 0
    assert send(config, 8)["result"] == -8


def test_the_items_of_a_batch_go_their_own_ways():
    config = {"a": {"backend": "S[Below5,(or)Repost[b]]", "max": 8}, "b": {"backend": "Negate"}}
    with headrace.pipe(config) as pipe:
        answers = pipe([{"data": n} for n in (1, 7, 3, 9)])
    assert [answer["result"] for answer in answers] == [1, -7, 3, -9]


def test_copies_that_fill_a_batch_up_go_nowhere():
    config = {
        "a": {"backend": "S[Below5,(or)Repost[b]]", "min": 4, "max": 4, "pad": True},
        "b": {"backend": "Negate"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 7})["result"] == -7
        assert pipe.stats()["nodes"]["b"]["submitted"] == 1


def test_a_deadline_holds_wherever_the_request_goes_on(held):
    config = {"a": {"backend": "Repost[b]"}, "b": {"backend": "Held"}}
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.DeadlineExceededError) as caught:
            pipe({"data": 1}, timeout=0.05)
        assert caught.value.node == "b"
        held.gate.set()


def test_a_request_that_waits_where_it_goes_on_can_be_taken_back(held):
    config = {"a": {"backend": "Repost[b]"}, "b": {"backend": "Held"}}
    with headrace.pipe(config) as pipe:
        first = pipe.submit({"data": 1})
        assert held.entered.acquire(timeout=WAIT_S)
        request = {"data": 2}
        second = pipe.submit(request)
        while not pipe.stats()["nodes"]["b"]["waiting"]:
            pass
        assert second.cancel()
        assert second.cancelled()
        assert request == {"data": 2}
        assert not first.cancel()
        assert first.running()
        held.gate.set()
        assert first.result(WAIT_S)["result"] == 1
        assert pipe.stats()["nodes"]["b"]["failed"] == {"cancelled": 1}


def test_who_waits_where_it_goes_on_counts_where_it_entered(held):
    config = {
        "a": {"backend": "Repost[b]", "queue_size": 1, "queue_full": "reject"},
        "b": {"backend": "Held"},
    }
    with headrace.pipe(config) as pipe:
        first = pipe.submit({"data": 1})
        assert held.entered.acquire(timeout=WAIT_S)
        second = pipe.submit({"data": 2})
        while not pipe.stats()["nodes"]["b"]["waiting"]:
            pass
        with pytest.raises(errors.OverloadedError):
            pipe({"data": 3})
        held.gate.set()
        assert [f.result(WAIT_S)["result"] for f in (first, second)] == [1, 2]


def test_a_close_that_drains_waits_for_who_goes_on_elsewhere(held):
    config = {
        "a": {"backend": "Repost[b]"},
        "b": {"backend": "Repost[c]"},
        "c": {"backend": "Held"},
    }
    pipe = headrace.pipe(config)
    futures = [pipe.submit({"data": number}) for number in range(3)]
    assert held.entered.acquire(timeout=WAIT_S)
    closing = threading.Thread(target=pipe.close)
    closing.start()
    held.gate.set()
    closing.join(WAIT_S)
    assert [future.result(WAIT_S)["result"] for future in futures] == [0, 1, 2]


# The limit.


def test_a_request_may_be_reposted_100_times_and_no_more(send):
    config = {"backend": "S[Down,AtZero,(or)Repost[main]]"}
    assert send(config, 101)["result"] == 0
    with pytest.raises(errors.LimitError) as caught:
        send(config, 102)
    assert (caught.value.limit, caught.value.node, caught.value.code) == (100, "main", "limit")
    assert send.stats["main"]["failed"] == {"limit": 1}


def test_a_repost_says_how_often_a_request_may_be_reposted_by_all(send):
    for limit in (3, 250):
        config = {"backend": f"S[Down,AtZero,(or)Repost(limit={limit})[main]]"}
        assert send(config, limit + 1)["result"] == 0
        with pytest.raises(errors.LimitError) as caught:
            send(config, limit + 2)
        assert (caught.value.limit, caught.value.node) == (limit, "main")
    config = {
        "a": {"backend": "S[Inc,Repost(limit=2)[b]]"},
        "b": {"backend": "S[Inc,Below5,(or)Repost(limit=3)[c]]", "next": "d"},
        "c": {"backend": "S[Inc,Repost(limit=4)[a]]"},
        "d": {"backend": "Negate"},
    }
    with pytest.raises(errors.LimitError) as caught:
        send(config, 4)  # to b, c, a, and then a fourth time, to b
    assert (caught.value.limit, caught.value.node) == (2, "a")


def test_a_dict_that_is_sent_again_begins_to_count_anew():
    with headrace.pipe({"backend": "S[Down,AtZero,(or)Repost(limit=3)[main]]"}) as pipe:
        request = {"data": 4}
        assert [pipe(request)["result"] for _ in range(3)] == [0, 0, 0]


# Where it may stand, and what is said of it.


def test_an_unknown_node_is_named_with_the_nearest():
    found = problem({"a": {"backend": "S[Inc,Repost[repiar]]"}, "repair": {"backend": "Inc"}})
    assert (found.code, found.path, found.suggestion) == ("unknown_instance", "a.backend", "repair")
    assert "repiar" in found.message


@pytest.mark.parametrize("text", ["Repost[repair,b]", "Repost[repair(x=1)]", "Repost[(or)repair]"])
def test_one_name_stands_in_the_bracket(text):
    found = problem({"a": {"backend": text}, "repair": {"backend": "Inc"}})
    assert (found.code, "one name in [ ]" in found.message) == ("wiring", True)


JOINED = {
    "x": {"backend": "Inc", "next": "y,z"},
    "y": {"backend": "S[Below5,(or)Repost[out]]", "next": "w"},
    "z": {"backend": "Negate", "next": "w"},
    "w": {"backend": "Inc", "map": "y[result:data],z[result:other]"},
    "out": {"backend": "Inc"},
}


def test_where_branches_part_or_have_joined_a_request_may_leave():
    for name in ("x", "w"):
        config = {**JOINED, "y": {"backend": "Inc", "next": "w"}}
        config[name] = {**config[name], "backend": "S[Below5,(or)Repost[out]]"}
        headrace.PipelineConfig.load(config)


def test_two_roots_that_join_are_no_branches():
    config = {
        "a": {"backend": "S[Below5,(or)Repost[out]]", "next": "c"},
        "b": {"backend": "Inc", "next": "c"},
        "c": {"backend": "Negate", "map": "a[result:data],b[result:data2]"},
        "out": {"backend": "Inc"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 9, "node_name": "a"})["result"] == 10


INC = {"backend": "Inc"}
REFUSED = {
    "a branch that joins again": (JOINED, "y.backend", "branches"),
    "a branch that joins later": (
        {
            **JOINED,
            "y": {**INC, "next": "y2"},
            "y2": JOINED["y"],
            "w": {**INC, "map": "y2[result:data],z[result:other]"},
        },
        "y2.backend",
        "branches",
    ),
    "a branch that does not join": (
        {"x": JOINED["x"], "y": {"backend": "Repost[w]"}, "z": INC, "w": INC},
        "y.backend",
        "branches",
    ),
    "an element": (
        {"a": {"backend": "Repost[b]", "each": "data"}, "b": INC},
        "a.backend",
        "element",
    ),
    "before others of an S": (
        {"a": {"backend": "S[Below5,(or)Repost[b],Negate]"}, "b": INC},
        "a.backend",
        "where its node ends",
    ),
    "a loop": (
        {"a": {"backend": "Loop(until=never)[S[Half,(or)Repost[b]]]"}, "b": INC},
        "a.backend",
        "where its node ends",
    ),
    "inside of CatSplit": (
        {"a": {"backend": "CatSplit[Inc,Repost[b],Inc]"}, "b": INC},
        "a.backend",
        "where its node ends",
    ),
}


@pytest.mark.parametrize(("config", "path", "word"), REFUSED.values(), ids=REFUSED)
def test_where_a_request_cannot_leave_it_is_refused(config, path, word):
    found = problem(config)
    assert found.path == path
    assert word in found.message
    assert "Repost" in found.text[slice(*found.span)]


def test_a_node_only_reached_by_repost_is_no_root():
    with headrace.pipe(REPAIR) as pipe:
        assert pipe({"data": 1})["result"] == -2
        assert pipe({"data": 8, "node_name": "repair"})["result"] == 4


def test_of_nodes_that_repost_to_each_other_the_first_is_the_root():
    config = {
        "try": {"backend": "S[Below5,(or)Repost[fix]]"},
        "fix": {"backend": "S[Half,Repost[try]]"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 9})["result"] == 4


def test_it_is_shown_where_a_request_may_go_on():
    shown = headrace.explain(REPAIR)["nodes"]["check"]
    assert shown["links"]["reposts"] == ["repair"]
    words = [shown["tree"], *shown["tree"]["children"]]
    assert [word["target"] for word in words if word["name"] == "Repost"] == ["repair"]
