"""Graphs of several nodes: what reaches which node, what the caller gets, what is refused."""

from __future__ import annotations

import threading

import internals
import pytest
from loading import problems
from sending import WAYS, backend

import headrace

pytestmark = pytest.mark.first("nodes make a graph of several models")

backend("Inc", lambda r: r["data"] + 1)
backend("Double", lambda r: r["data"] * 2)
backend("Negate", lambda r: -r["data"])
backend("KeysOf", lambda r: sorted(k for k in r if k != "result"))
backend("Pair", lambda r: (r["data"], r["other"]))
backend("Tag", lambda r: r.__setitem__("tag", r["data"]) or r["data"] + 1)


backend("Range", lambda r: list(range(r["data"])))


def every_way(config, request):
    """Run a request in every way there is; all must agree."""
    answers = []
    with headrace.pipe(config) as pipe:
        for way in WAYS.values():
            one = dict(request)
            assert way(pipe, one) is one
            assert one["data"] is request["data"]
            answers.append(one)
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def incs(**nodes):
    """Give nodes that add 1, unless their keys say otherwise."""
    return {name: {"backend": "Inc", **keys} for name, keys in nodes.items()}


def test_a_map_may_be_a_table_and_brings_only_what_it_names_and_context_and_request_id():
    config = {
        "a": {"backend": "Tag", "next": "b"},
        "b": {"backend": "KeysOf", "map": {"a": {"result": "data", "tag": "label"}}},
    }
    request = {"data": 1, "request_id": "r", "context": {"k": 1}, "mine": 2}
    answer = every_way(config, request)
    assert answer["result"] == ["context", "data", "label", "request_id"]


DIAMOND = {
    "x": {"backend": "Inc", "next": "y,z"},
    "y": {"backend": "Double", "next": "w"},
    "z": {"backend": "Negate", "next": "w"},
    "w": {"backend": "Pair", "map": "y[result:data], z[result:other]"},
}
EACH = {
    "a": {"backend": "Range", "next": "b"},
    "b": {"backend": "Double", "each": "data", "next": "c", "max": 8},
    "c": {"backend": "Identity"},
}


def test_each_batches_the_elements_of_one_request():
    with headrace.pipe(EACH) as pipe:
        pipe({"data": 8})
        assert pipe.stats()["nodes"]["b"]["batch_size"]["mean"] == 8


@pytest.fixture
def slow(monkeypatch):
    """Let every branch count as slow."""
    monkeypatch.setattr(internals.walk, "CHEAP_S", 0.0)


@pytest.mark.usefixtures("takes_turns", "slow")
@pytest.mark.parametrize("in_main", [True, False], ids=["main", "thread"])
def test_slow_branches_run_at_the_same_time(client, in_main):
    both = threading.Barrier(2)  # broken unless the branches run at the same time

    def meet(request):
        both.wait(60)
        return -request["data"]

    backend("Meet", meet)
    meeting = {"backend": "Meet", "next": "w"}
    config = {**DIAMOND, "y": meeting, "z": meeting}
    with headrace.pipe(config) as pipe:
        request = {"data": 4}
        answer = pipe(request) if in_main else client(pipe, request).outcome()
    assert answer["result"] == (-5, -5)


@pytest.mark.usefixtures("slow")
def test_a_longer_branch_goes_on_without_the_other(client):
    e_has_run = threading.Event()
    backend("WaitsForE", lambda r: e_has_run.wait(60))
    backend("RunsAsE", lambda r: e_has_run.set() or r["data"])
    nodes = incs(a={"next": "b,c"}, b={"backend": "WaitsForE"}, c={"next": "e"})
    with headrace.pipe({**nodes, "e": {"backend": "RunsAsE"}}) as pipe:
        assert client(pipe, {"data": 1}).outcome()["result"] == {"b": True, "e": 3}


def test_a_line_of_two_hundred_nodes_runs():
    config = {f"n{i}": {"backend": "Inc", "next": f"n{i + 1}"} for i in range(199)}
    config["n199"] = {"backend": "Inc"}
    assert every_way(config, {"data": 0})["result"] == 200


INTO_B = {"next": "b"}
NO_WAY = [
    (incs(a={"next": "bb"}, b={}), "a.next", "bb"),
    (incs(a={"next": "b,b"}, b={}), "a.next", "twice"),
    (incs(a=INTO_B, b={"next": "a"}), "a.next", "cycle"),
    (incs(a={"next": "a"}), "a.next", "cycle"),
    ({**DIAMOND, "w": {"backend": "Inc"}}, "w", "map"),
    ({**DIAMOND, "w": {"backend": "Inc", "map": "y[result:data]"}}, "w.map", "'z'"),
    (incs(a=INTO_B, b={"map": "a[result:x]"}), "b.map", "data"),
    (incs(a=INTO_B, b={"map": "a(result)"}), "b.map", "expected"),
    (incs(a=INTO_B, b={"map": "c[result:data]"}), "b.map", "'c'"),
    (incs(a=INTO_B, b={"map": "a[result:data],b[x:y]"}), "b.map", "'b' is this node"),
    (incs(a=INTO_B, b={"map": "a[result:data,data:result]"}), "b.map", "'result'"),
    (incs(a={"or": True}), "a.or", "predecessor"),
    (incs(a={"each": "data:result"}), "a.each", "'result'"),
    (incs(a={"each": "result:data"}), "a.each", "'result'"),
    (incs(a={"map": "a[result:data]"}), "a.map", "before"),
    (
        incs(x={"next": "y,z"}, y={"next": "v"}, z={}, v={"map": "y[result:data],z[result:other]"}),
        "v.map",
        "without passing",
    ),
]


@pytest.mark.parametrize(("config", "path", "word"), NO_WAY)
def test_a_graph_without_a_way_through_is_refused(config, path, word):
    found = [p for p in problems(config) if p.path == path]
    assert found, problems(config)
    assert any(word in p.message for p in found)


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("a[result:data,x:]", "x:"),
        ("a[result:data,color]", "color"),
        ("a[result:data],", ""),
        ("a[result:data],b(x:y)", "b(x:y)"),
        ("a[result:data],a[x:y]", "a"),
        ("", '""'),
    ],
)
def test_a_map_that_cannot_be_read_is_marked_where_it_is_wrong(text, marked):
    config = incs(a=INTO_B, b={"map": text})
    found = problems(config)[0]
    start, end = found.span
    assert found.text[start:end] == marked
    assert not text or text.rindex(marked) == start


@pytest.mark.parametrize(
    ("keys", "code", "said"),
    [
        ({"next": 5}, "key", "expected the names of nodes, got 5"),
        ({"next": ["b", 5]}, "key", 'expected the names of nodes, got ["b", 5]'),
        ({"next": "b,"}, "graph", "there is an empty name in 'b,'"),
        ({"each": ["x"]}, "key", "expected 'key' or 'key:target', got [\"x\"]"),
        ({"each": "x:y:z"}, "type", "expected 'key' or 'key:target', got 'x:y:z'"),
        ({"each_errors": "none"}, "graph", "the node has no 'each'"),
        (
            {"each": "x", "each_errors": "non"},
            "key",
            "Input should be 'fail' or 'none', got \"non\"",
        ),
    ],
)
def test_a_link_that_cannot_be_read_is_told_at_its_key(keys, code, said):
    config = {"a": {"backend": "Inc", "next": "b", **keys}, "b": {"backend": "Inc"}}
    if code == "key":  # what follows from the other links is not known then
        config["c"] = {"backend": "Inc", "or": True}
    (found,) = problems(config)
    assert (found.code, found.message) == (code, said)
    assert found.path == f"a.{list(keys)[-1]}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a[result:data],b[result", "expected node[source:target,...]"),
        ("a[result:data],b[result]", "expected node[source:target,...]"),
        ("a[result:data],a[data:x],b[result:y]", "'a' stands there twice"),
        ("b[result:y],a[result:data],a[data:x]", "'a' stands there twice"),
    ],
)
def test_a_map_that_cannot_be_read_at_a_join_is_one_problem(text, said):
    config = {name: {"backend": "Inc", "next": "c"} for name in "ab"}
    (found,) = problems({**config, "c": {"backend": "Inc", "map": text}})
    assert (found.path, found.message) == ("c.map", said)


def test_two_sources_for_one_key_are_an_error():
    text = "a[result:data,x:k,y:k]"
    config = incs(a=INTO_B, b={"map": text})
    (found,) = problems(config)
    assert (found.path, found.message) == ("b.map", "two sources go to the key 'k'")


@pytest.mark.parametrize(
    "table",
    [
        *({}, {"a": {}}, {"a": "result"}, {"a": {"": "data"}}, {"a": {"result": ["data", ""]}}, 5),
        *({"a": {"data": "data", "result": targets}} for targets in ([], ["data", 5], None)),
    ],
    ids=repr,
)
def test_a_map_of_another_shape_is_shown_with_an_example(table):
    config = incs(a=INTO_B, b={"map": table})
    (found,) = problems(config)
    assert (found.code, found.path) == ("key", "b.map")
    assert found.text.startswith("map = ")
    assert 'map.a = {result = "data"}' in found.message


def test_two_nodes_that_are_passed_by_keep_dicts_of_their_own():
    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"] + "!"

    headrace.register("Mark", type("Mark", (), {"forward": forward}), replace=True)
    passed = {"backend": "Mark", "map": "first[result:data]", "or": True}
    config = {
        "first": {"backend": "Mark", "next": "left,right"},
        "left": {**passed, "next": "last"},
        "right": passed,
        "last": {"backend": "Mark"},
    }
    with headrace.pipe(config) as pipe:
        for ask in (pipe, lambda request: pipe.submit(request).result(60)):
            assert ask({"data": "a"})["result"] == {"right": "a!", "last": "a!!"}
