"""Graphs of several nodes: what reaches which node, what the caller gets, what is refused."""

from __future__ import annotations

import threading

import internals
import pytest
from loading import problems
from sending import WAYS, backend

import headrace
from headrace import errors

backend("Inc", lambda r: r["data"] + 1)
backend("Double", lambda r: r["data"] * 2)
backend("Nothing", lambda r: None)
backend("Even", lambda r: r["data"] if r["data"] % 2 == 0 else None)
backend("Negate", lambda r: -r["data"])
backend("KeysOf", lambda r: sorted(k for k in r if k != "result"))
backend("Pair", lambda r: (r["data"], r["other"]))
backend("Tag", lambda r: r.__setitem__("tag", r["data"]) or r["data"] + 1)


def fail(request):
    raise ValueError(f"cannot take {request['data']}")


backend("Fail", fail)


def fail_on_three(request):
    if request["data"] == 3:
        raise ValueError("three")
    return request["data"] * 10


backend("NotThree", fail_on_three)
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


def every_failure(config, request):
    found = []
    with headrace.pipe(config) as pipe:
        for way in WAYS.values():
            one = dict(request)
            with pytest.raises(errors.RequestError) as caught:
                way(pipe, one)
            assert one["data"] is request["data"]
            assert "result" not in one
            found.append(caught.value)
    assert len({(type(e), e.node) for e in found}) == 1
    return found[0]


def incs(**nodes):
    """Give nodes that add 1, unless their keys say otherwise."""
    return {name: {"backend": "Inc", **keys} for name, keys in nodes.items()}


def test_keys_written_on_a_line_come_back_to_the_caller():
    config = {"a": {"backend": "Tag", "next": "b"}, "b": {"backend": "Double"}}
    answer = every_way(config, {"data": 4, "mine": "x"})
    assert answer == {"data": 4, "result": 10, "tag": 4, "mine": "x"}


def test_a_map_may_be_a_table_and_brings_only_what_it_names_and_context_and_request_id():
    config = {
        "a": {"backend": "Tag", "next": "b"},
        "b": {"backend": "KeysOf", "map": {"a": {"result": "data", "tag": "label"}}},
    }
    request = {"data": 1, "request_id": "r", "context": {"k": 1}, "mine": 2}
    answer = every_way(config, request)
    assert answer["result"] == ["context", "data", "label", "request_id"]


def test_branches_do_not_see_each_others_keys():
    config = {
        "x": {"backend": "Identity", "next": "y,z"},
        "y": {"backend": "Tag"},
        "z": {"backend": "KeysOf"},
    }
    assert every_way(config, {"data": 4})["result"]["z"] == ["data"]


DIAMOND = {
    "x": {"backend": "Inc", "next": "y,z"},
    "y": {"backend": "Double", "next": "w"},
    "z": {"backend": "Negate", "next": "w"},
    "w": {"backend": "Pair", "map": "y[result:data], z[result:other]"},
}
OR = {"a": {"backend": "Even", "next": "b"}, "b": {"backend": "Negate", "or": True}}
PASSED_BY = {
    **OR,
    "b": {**OR["b"], "next": "c"},
    "c": {"backend": "Inc", "map": "b[result:data]"},
}
EACH = {
    "a": {"backend": "Range", "next": "b"},
    "b": {"backend": "Double", "each": "data", "next": "c", "max": 8},
    "c": {"backend": "Identity"},
}
ROOTS = {
    "a": {"backend": "Inc", "next": "c"},
    "b": {"backend": "Double", "next": "c"},
    "c": {"backend": "Negate", "map": "a[result:data],b[result:data2]"},
}
RESULTS = {
    "a line hands the result of one node to the next": (
        incs(a={"next": "b"}, b={"backend": "Double", "next": ["c"]}, c={"backend": "Negate"}),
        {"data": 4},
        -10,
    ),
    "a diamond joins what its map names": (DIAMOND, {"data": 4}, (10, -5)),
    "a map may name a node further back": (
        {
            "a": {"backend": "Inc", "next": "b"},
            "b": {"backend": "Double", "next": "c"},
            "c": {"backend": "Pair", "map": "b[result:data],a[result:other]"},
        },
        {"data": 1},
        (4, 2),
    ),
    "several sinks give a dict by their names": (
        incs(x={"next": "y,z"}, y={"backend": "Double"}, z={"backend": "Negate"}),
        {"data": 4},
        {"y": 10, "z": -5},
    ),
    "or is passed by where the predecessor gave a result": (OR, {"data": 4}, 4),
    "or runs where the predecessor gave nothing": (OR, {"data": 3}, -3),
    "a node that is passed by stands for its predecessor": (PASSED_BY, {"data": 4}, 5),
    "a node with or that has run stands for itself": (PASSED_BY, {"data": 3}, -2),
    "each runs once per element and gathers in order": (EACH, {"data": 5}, [0, 2, 4, 6, 8]),
    "each over an empty list gives an empty list": (EACH, {"data": 0}, []),
    "each may put the element under another key": (
        {
            "a": {"backend": "Identity", "next": "b"},
            "b": {"backend": "Pair", "each": "boxes:other"},
        },
        {"data": 7, "boxes": [1, 2]},
        [(7, 1), (7, 2)],
    ),
    "each_errors = none puts None in the place of a failing element": (
        {"a": {"backend": "NotThree", "each": "boxes", "each_errors": "none"}},
        {"data": 1, "boxes": [1, 3, 2]},
        [10, None, 20],
    ),
    "only what is reachable from the entry takes part": (ROOTS, {"data": 4, "node_name": "a"}, -5),
}


@pytest.mark.parametrize(("config", "request_", "result"), RESULTS.values(), ids=RESULTS)
def test_a_graph_gives_one_result_in_every_way(config, request_, result):
    assert every_way(config, request_)["result"] == result


FAILURES = {
    "a node without or after one without result": (
        {**PASSED_BY, "b": {"backend": "Nothing", "or": True, "next": "c"}},
        {"data": 3},
        errors.NoResultError(node="b"),
    ),
    "a failing branch": (
        {**DIAMOND, "z": {"backend": "Fail", "next": "w"}},
        {"data": 3},
        errors.BackendError(node="z"),
    ),
    "a missing source": (
        incs(a={"next": "b"}, b={"map": "a[result:data,color:color]"}),
        {"data": 3},
        errors.InputError(node="a", key="color"),
    ),
    "a failing element": (
        {"a": {"backend": "NotThree", "each": "boxes"}},
        {"data": 1, "boxes": [1, 2, 3]},
        errors.BackendError(node="a"),
    ),
}


@pytest.mark.parametrize(("config", "request_", "wanted"), FAILURES.values(), ids=FAILURES)
def test_a_request_that_fails_in_a_graph_names_the_node_in_every_way(config, request_, wanted):
    error = every_failure(config, request_)
    assert isinstance(error, type(wanted))
    assert error.node == wanted.node
    assert getattr(error, "key", None) == getattr(wanted, "key", None)


def test_each_batches_the_elements_of_one_request():
    with headrace.pipe(EACH) as pipe:
        pipe({"data": 8})
        assert pipe.stats()["nodes"]["b"]["batch_size"]["mean"] == 8


def test_with_several_roots_the_request_must_name_one():
    error = every_failure(ROOTS, {"data": 4})
    assert isinstance(error, errors.InputError)
    assert error.key == "node_name"
    assert "a, b" in str(error)
    error = every_failure(ROOTS, {"data": 4, "node_name": "nobody"})
    assert "nobody" in str(error)
    assert error.hint is None
    error = every_failure(ROOTS, {"data": 4, "node_name": "C"})
    assert error.hint == "Did you mean 'c'?"


def test_a_list_of_requests_keeps_their_outcomes_apart():
    config = {"a": {"backend": "Inc", "next": "b"}, "b": {"backend": "NotThree"}}
    requests = [{"data": n} for n in (1, 2, 3)]
    with headrace.pipe(config) as pipe:
        with pytest.raises(errors.RequestsFailed) as caught:
            pipe(requests)
        assert [type(e) for e in caught.value.errors] == [
            type(None),
            errors.BackendError,
            type(None),
        ]
        assert [requests[0]["result"], requests[2]["result"]] == [20, 40]
        futures = pipe.submit([{"data": 1}, {"data": 2}])
        assert futures[0].result(60)["result"] == 20
        with pytest.raises(errors.BackendError):
            futures[1].result(60)


def test_a_request_can_be_sent_a_second_time():
    with headrace.pipe(DIAMOND) as pipe:
        request = {"data": 4}
        assert pipe(pipe(request))["result"] == (10, -5)


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


def test_links_may_have_placeholders(monkeypatch):
    for name, value in {"NEXT": "b", "KEY": "boxes", "SOURCE": "result", "OR": "true"}.items():
        monkeypatch.setenv(name, value)
    config = {
        "a": {"backend": "Inc", "next": "${NEXT}"},
        "b": {"backend": "Inc", "map": "a[${SOURCE}:data,boxes:boxes]", "next": ["${NOT:-c}"]},
        "c": {"backend": "Nothing", "map": {"b": {"boxes": "${NOT:-boxes}", "result": "data"}}},
        "d": {"backend": "Inc", "or": "${OR}", "each": "${KEY}", "each_errors": "${NOT:-none}"},
    }
    config["c"]["next"] = "d"
    assert every_way(config, {"data": 0, "boxes": [1, "x"]})["result"] == [2, None]
    (unset,) = problems({"a": {"backend": "Inc", "each": "${NOT}"}})
    assert unset.path == "a.each"
    assert "NOT" in unset.message


def test_a_node_called_without_its_prefix_is_suggested_with_it():
    (found,) = problems({"a": {"backend": "Inc"}, "b": {"backend": "S[Inc,Forward[a]]"}})
    assert found.suggestion == "node.a"


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
