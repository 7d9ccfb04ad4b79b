"""Repost: a request that leaves the way after one node and goes on at another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loading import problem
from sending import WAYS, Sender, backend

import headrace
from headrace import errors

backend("Inc", lambda r: r["data"] + 1)
backend("Negate", lambda r: -r["data"])
backend("Below5", lambda r: r["data"] if r["data"] < 5 else None)
backend("Half", lambda r: r["data"] // 2)
backend("Keys", lambda r: sorted(k for k in r if k != "result"))
backend("TagT", lambda r: r.__setitem__("tag", "t") or r["data"])
backend("Fail", lambda r: 1 // 0)


@pytest.fixture(params=WAYS)
def send(request, shortcut):
    """Send one request in one of the ways there are."""
    return Sender(request.param)


REPAIR = {
    "check": {"backend": "S[Inc,Below5,(or)Repost[repair]]", "next": "done"},
    "done": {"backend": "Negate"},
    "repair": {"backend": "Half"},
}


def test_the_request_goes_on_at_the_other_node_and_not_at_the_next(send):
    assert send(REPAIR, 1)["result"] == -2
    assert send(REPAIR, 7)["result"] == 4  # half of the 8 that Below5 did not let pass
    assert [send.stats[n]["ok"] for n in ("check", "done", "repair")] == [1, 0, 1]


def test_who_is_reposted_leaves_the_expression_at_once(send):
    config = {
        "a": {"backend": "S[Below5,(or)Repost[b],Negate]"},
        "b": {"backend": "Inc"},
    }
    assert send(config, 1)["result"] == -1
    assert send(config, 7)["result"] == 8


def test_a_node_may_be_entered_again_until_it_is_done(send):
    config = {
        "a": {"backend": "S[Below5,(or)S[Half,Repost[a]]]", "next": "b"},
        "b": {"backend": "Negate"},
    }
    assert send(config, 64)["result"] == -4
    assert send.stats["a"]["submitted"] == 5
    assert send.stats["b"]["submitted"] == 1


def test_a_pipeline_of_one_node_may_repost_to_itself(send):
    config = {"backend": "S[Below5,(or)S[Half,Repost[main]]]"}
    assert send(config, 64)["result"] == 4


def test_the_dict_goes_along_with_its_keys_and_a_map_is_for_the_ordinary_way(send):
    config = {
        "a": {"backend": "S[TagT,Below5,(or)Repost[c]]", "next": "b"},
        "b": {"backend": "Negate", "next": "c"},
        "c": {"backend": "Keys", "map": "b[result:data]"},
    }
    assert send(config, 1, mine=1)["result"] == ["data"]
    answer = send(config, 9, mine=1)
    assert answer["result"] == ["data", "mine", "tag"]
    assert answer["tag"] == "t"


def test_a_request_may_be_reposted_100_times_and_no_more(send):
    backend("Down", lambda r: r["data"] - 1)
    backend("AtZero", lambda r: r["data"] if r["data"] == 0 else None)
    config = {"backend": "S[Down,AtZero,(or)Repost[main]]"}
    assert send(config, 101)["result"] == 0
    with pytest.raises(errors.LimitError) as caught:
        send(config, 102)
    assert (caught.value.limit, caught.value.node, caught.value.code) == (100, "main", "limit")
    counts = send.stats["main"]
    assert (counts["submitted"], counts["ok"], counts["failed"]) == (101, 100, {"limit": 1})


def test_a_branch_that_does_not_join_goes_on_by_itself(send):
    config = {
        "x": {"backend": "Identity", "next": "y,z"},
        "y": {"backend": "S[Below5,(or)Repost[w]]"},
        "z": {"backend": "Negate"},
        "w": {"backend": "Inc"},
    }
    assert send(config, 1)["result"] == {"y": 1, "z": -1}
    assert send(config, 8)["result"] == {"w": 9, "z": -8}


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
        "v": {"backend": "Keys"},
    }
    assert send(config, 1)["result"] == 2
    assert send(config, 8)["result"] == ["data", "other"]


def test_a_failure_after_a_repost_names_its_node(send):
    config = {"a": {"backend": "Repost[b]"}, "b": {"backend": "Fail"}}
    with pytest.raises(errors.BackendError) as caught:
        send(config, 1)
    assert caught.value.node == "b"
    assert send.stats["b"]["failed"] == {"backend": 1}


def test_a_key_that_the_caller_happens_to_have_means_nothing(send):
    assert send(REPAIR, 1, repost="done")["result"] == -2
    plain = {"a": {"backend": "Inc", "next": "b"}, "b": {"backend": "Negate"}}
    assert send(plain, 1, repost="a") == {"data": 1, "result": -2, "repost": "a"}


def test_a_backend_that_writes_the_key_itself_is_told_to_use_the_word(send):
    backend("Cheat", lambda r: r.__setitem__("repost", "nowhere") or r["data"])
    config = {"a": {"backend": "S[Below5,(or)Repost[b],Cheat]"}, "b": {"backend": "Inc"}}
    with pytest.raises(errors.ContractError, match="nowhere"):
        send(config, 1)


def test_a_repost_reached_by_forward_ends_the_way_of_the_request(send):
    config = {
        "a": {"backend": "S[Forward[node.checked],Negate]", "next": "done"},
        "checked": {"backend": "S[Below5,(or)Repost[b]]"},
        "b": {"backend": "Inc"},
        "done": {"backend": "Inc"},
    }
    assert send(config, 1)["result"] == 0
    assert send(config, 8)["result"] == 9


def test_a_loop_ends_for_an_item_that_is_reposted(send):
    config = {
        "a": {"backend": "Loop(until=never)[S[Half,Below5,(or)Repost[b]]]"},
        "b": {"backend": "Inc"},
    }
    assert send(config, 90)["result"] == 46


def test_a_front_before_the_graph_may_have_nodes_that_repost(send):
    config = {"global": {"entrypoint": "S[Inc,DagDispatcher]"}, **REPAIR}
    assert send(config, 0)["result"] == -2
    assert send(config, 9)["result"] == 5


def test_the_items_of_a_batch_go_their_own_ways(shortcut):
    config = {"a": {"backend": "S[Below5,(or)Repost[b]]", "max": 8}, "b": {"backend": "Negate"}}
    with headrace.pipe(config) as pipe:
        answers = pipe([{"data": n} for n in (1, 7, 3, 9)])
    assert [answer["result"] for answer in answers] == [1, -7, 3, -9]


def test_a_deadline_holds_wherever_the_request_goes_on(gate, client, expire):
    config = {"a": {"backend": "Repost[b]"}, "b": {"backend": "Gate"}}
    with headrace.pipe(config) as pipe:
        calling = client(pipe, {"data": 1}, timeout=60)
        gate.wait_entered()
        (deadline,) = expire(pipe, 1)
        assert deadline is not None
        with pytest.raises(errors.DeadlineExceededError) as caught:
            calling.outcome()
        assert caught.value.node == "b"
        assert caught.value.abandoned
        gate.open()


def test_a_request_that_waits_where_it_goes_on_can_be_taken_back(gate, until):
    config = {"a": {"backend": "Repost[b]"}, "b": {"backend": "Gate"}}
    with headrace.pipe(config) as pipe:
        first = pipe.submit({"data": 1})
        gate.wait_entered()
        request = {"data": 2}
        second = pipe.submit(request)
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        assert second.cancel()
        assert second.cancelled()
        assert request == {"data": 2}
        assert not first.cancel()
        assert first.running()
        gate.open()
        assert first.result(60)["result"] == 1
        assert pipe.stats()["nodes"]["b"]["failed"] == {"cancelled": 1}


def test_who_waits_where_it_goes_on_counts_where_it_entered(gate, until):
    config = {
        "a": {"backend": "Repost[b]", "queue_size": 1, "queue_full": "reject"},
        "b": {"backend": "Gate"},
    }
    with headrace.pipe(config) as pipe:
        first = pipe.submit({"data": 1})
        gate.wait_entered()
        second = pipe.submit({"data": 2})
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        with pytest.raises(errors.OverloadedError):
            pipe({"data": 3})
        gate.open()
        assert [f.result(60)["result"] for f in (first, second)] == [1, 2]


def test_an_unknown_node_is_named_with_the_nearest():
    found = problem({"a": {"backend": "S[Inc,Repost[repiar]]"}, "repair": {"backend": "Inc"}})
    assert (found.code, found.path, found.suggestion) == ("graph", "a.backend", "repair")
    assert found.text[slice(*found.span)] == "repiar"


JOINED = {
    "x": {"backend": "Inc", "next": "y,z"},
    "y": {"backend": "S[Below5,(or)Repost[out]]", "next": "w"},
    "z": {"backend": "Negate", "next": "w"},
    "w": {"backend": "Inc", "map": "y[result:data],z[result:other]"},
    "out": {"backend": "Inc"},
}


def test_where_branches_part_or_have_joined_a_request_may_end():
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
ENDLESS = {
    "a branch that joins again": (JOINED, "y.backend", "joins"),
    "a branch that joins later": (
        {
            **JOINED,
            "y": {**INC, "next": "y2"},
            "y2": JOINED["y"],
            "w": {**INC, "map": "y2[result:data],z[result:other]"},
        },
        "y2.backend",
        "joins",
    ),
    "a node whose way around joins after it": (
        {
            "x": {**INC, "next": "y,w"},
            "y": {"backend": "Repost[out]", "next": "w"},
            "w": {**INC, "map": "x[result:data],y[result:other]"},
            "out": INC,
        },
        "y.backend",
        "joins",
    ),
    "two branches at one node": (
        {"x": JOINED["x"], "y": {"backend": "S[Below5,(or)Repost[z]]"}, "z": INC},
        "y.backend",
        "'z'",
    ),
    "an element": (
        {"a": {"backend": "Repost[b]", "each": "data"}, "b": INC},
        "a.backend",
        "element",
    ),
    "inside of CatSplit": (
        {"a": {"backend": "CatSplit[Inc,Repost[b],Inc]"}, "b": INC},
        "a.backend",
        "CatSplit",
    ),
    "a front": (
        {"global": {"entrypoint": "S[Repost[a],DagDispatcher]"}, "a": INC},
        "global.entrypoint",
        "entrypoint",
    ),
}


@pytest.mark.parametrize(("config", "path", "word"), ENDLESS.values(), ids=ENDLESS)
def test_where_there_is_no_way_to_end_it_is_refused(config, path, word):
    found = problem(config)
    assert found.path == path
    assert word in found.message
    assert "Repost" in found.text[slice(*found.span)]


def test_what_is_built_late_cannot_repost():
    class Late(headrace.Backend):
        def init(self, options, context):
            self.child = context.build("Repost[main]")

        def forward(self, batch):
            """Never called."""

    headrace.register("Late", Late, replace=True)
    with pytest.raises(errors.SetupError, match="Repost"):
        headrace.pipe({"backend": "Late"})


# Which nodes are roots.


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


def test_a_node_that_is_only_called_is_no_root():
    config = {
        "page": {"backend": "S[Forward[node.word],Negate]"},
        "word": {"backend": "Inc"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 1})["result"] == -2
        assert pipe({"data": 1, "node_name": "word"})["result"] == 2


def test_a_node_and_another_door_to_it_are_two_roots():
    config = {"x": {"backend": "Inc"}, "door": {"backend": "Forward[node.x]", "timeout_ms": 60_000}}
    with headrace.pipe(config) as pipe, pytest.raises(errors.InputError, match="x, door"):
        pipe({"data": 1})


@pytest.mark.parametrize(
    ("door", "x", "data", "result"),
    [
        ({"each": "data:rows"}, {"each": "rows"}, [[1, 2], []], [[2, 3], []]),
        ({"next": "z"}, {}, 1, -2),
    ],
)
def test_what_stands_behind_a_door_with_links_of_its_own_is_no_root(door, x, data, result):
    config = {
        "x": {"backend": "Inc", **x},
        "door": {"backend": "Forward[node.x]", **door},
        **({"z": {"backend": "Negate"}} if "next" in door else {}),
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": data})["result"] == result
    config["x"] = {**config["x"], "next": "y"}
    config["y"] = {"backend": "Inc"}
    with headrace.pipe(config) as pipe, pytest.raises(errors.InputError, match="x, door"):
        pipe({"data": data})


def test_it_is_shown_where_a_request_may_go_on():
    shown = headrace.explain(REPAIR)["nodes"]["check"]
    assert shown["links"]["reposts"] == ["repair"]
    words = [shown["tree"], *shown["tree"]["children"]]
    assert [word["target"] for word in words if word["name"] == "Repost"] == ["repair"]


def test_a_reload_may_take_a_repost_away_and_add_none():
    config = {
        "a": {"backend": "S[Below5,(or)Repost[b]]"},
        "b": {"backend": "Half"},
        "c": {"backend": "Negate"},
    }
    with headrace.pipe(config) as pipe:
        request = {"data": 8, "node_name": "a"}
        assert pipe(request)["result"] == 4
        pipe.reload("a", {"backend": "S[Below5,(or)S[Half,Repost[b]]]"})
        assert pipe(request)["result"] == 2
        with pytest.raises(errors.SetupError, match="a Repost that was not there before"):
            pipe.reload("a", {"backend": "S[Below5,(or)Repost[c]]"})
        with pytest.raises(errors.ConfigError):
            pipe.reload("a", {"backend": "S[Below5,(or)Repost[d]]"})
        assert pipe(request)["result"] == 2
        pipe.reload("a", {"backend": "Half"})
        assert pipe(request)["result"] == 4


def test_a_reload_cannot_make_a_graph_of_a_single_node():
    with headrace.pipe({"backend": "Below5"}) as pipe:
        with pytest.raises(errors.SetupError, match="Repost"):
            pipe.reload("main", {"backend": "S[Below5,(or)S[Half,Repost[main]]]"})
        assert pipe({"data": 3})["result"] == 3


def test_a_reload_may_change_the_time_of_another_door(gate):
    config = {
        "a": {"backend": "S[Forward[node.door]]"},
        "door": {"backend": "Forward[node.x]"},
        "x": {"backend": "Gate"},
    }
    with headrace.pipe(config) as pipe:
        pipe.reload("door", {"timeout_ms": 30})
        with pytest.raises(errors.DeadlineExceededError):
            pipe({"data": 1, "node_name": "a"})
        gate.open()


def test_a_route_worked_out_while_a_reload_links_the_nodes_anew_is_not_kept(monkeypatch):
    """A request has read the old links; the new ones are in place before its route is put into the table."""
    config = {"a": {"backend": "Inc", "next": "b"}, "b": {"backend": "Inc"}}
    with headrace.pipe(config) as pipe:
        graph = pipe._engine.graph
        old = graph._links
        new = {name: replace(one, reposts=("a",)) for name, one in old.items()}
        make = type(graph.route_from("b"))

        def slow(*args):
            monkeypatch.undo()
            graph.link(new)
            return make(*args)

        graph.link(old)
        monkeypatch.setattr("headrace._running.graph.Route", slow)
        graph.route_from("b")
        assert graph.route_from("b").start.links is new["b"]


def test_a_repost_says_how_often_a_request_may_be_reposted(send):
    backend("Down", lambda r: r["data"] - 1)
    backend("AtZero", lambda r: r["data"] if r["data"] == 0 else None)
    for limit in (3, 250):
        config = {"backend": f"S[Down,AtZero,(or)Repost(limit={limit})[main]]"}
        assert send(config, limit + 1)["result"] == 0
        with pytest.raises(errors.LimitError) as caught:
            send(config, limit + 2)
        assert (caught.value.limit, caught.value.node) == (limit, "main")


def test_the_limit_of_a_repost_counts_the_reposts_of_all_and_the_greatest_to_one_node_holds(send):
    config = {
        "a": {"backend": "S[Inc,HasKey(never)[Identity,Repost(limit=2)[b]]]"},
        "b": {"backend": "S[Inc,HasKey(never)[Identity,S[Below5,(or)Repost(limit=3)[c]]]]"},
        "c": {
            "backend": "S[Inc,HasKey(never)[Repost(limit=1)[a],S[Below5,(or)Repost(limit=4)[a]]]]"
        },
    }
    with pytest.raises(errors.LimitError) as caught:
        send(config, 4)  # to b, c, a, and then a third time to b
    assert (caught.value.limit, caught.value.node) == (2, "a")


def test_a_reload_brings_the_limit_of_a_repost(send):
    backend("Down", lambda r: r["data"] - 1)
    backend("AtZero", lambda r: r["data"] if r["data"] == 0 else None)
    text = "S[Down,AtZero,(or)Repost(limit={})[main]]"
    with headrace.pipe({"backend": text.format(2)}) as pipe:
        with pytest.raises(errors.LimitError):
            pipe({"data": 5})
        pipe.reload("main", {"backend": text.format(4)})
        assert pipe({"data": 5})["result"] == 0
