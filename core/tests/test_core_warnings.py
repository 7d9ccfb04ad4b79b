"""What is allowed and hardly meant: the warnings of check and explain."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import pytest
from loading import problem, problems

import headrace


class Sized(headrace.Backend):
    """Says what it writes."""

    writes = ("result", "size")

    class Options(headrace.Options):
        positional = ("width",)
        width: int = 1
        height: int = 1

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]
            request["size"] = self.max


class OfFile(headrace.Options):
    """Options of what runs what is in a file."""

    model: headrace.FilePath = Path(__file__)


def made(name, base=Sized, **body):
    """Register a class that differs from its base in what is given."""
    headrace.register(name, type(name, (base,), body), replace=True)


@pytest.fixture(autouse=True)
def backends(monkeypatch, known_elsewhere):
    made("Sized")
    made("Owner", owns_thread=True)
    made("OfFile", Options=OfFile)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "1")
    known_elsewhere("Elsewhere", "headrace-elsewhere")


def warnings(config):
    return headrace.explain(config)["warnings"]


def codes(config):
    return [warning["code"] for warning in warnings(config)]


# Options without effect.


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "Sized(3)", "width": 4},
        {"backend": "S[Sized(width=3),Sized(5)]", "width": 4},
        {"backend": "Sized", "width": 4, "Sized::width": 5},
        {"backend": "Z(width=3)", "define": {"Z": "S[Sized]"}, "width": 4},
        {"global": {"width": 4}, "a": {"backend": "Sized(3)"}, "b": {"backend": "Sized(3)"}},
        {"global": {"width": 4}, "main": {"backend": "Sized", "width": 5}},
        {"backend": "ModelLoader(model=x.a)[(.a)Identity,(.b)S[Sized]]", "width": 4},
    ],
)
def test_an_option_that_is_overruled_wherever_it_could_count_is_told(config):
    (found,) = warnings(config)
    assert found["code"] == "unused_option"
    assert found["path"] in ("main.width", "global.width")
    assert "Sized" in found["message"]
    assert found["text"] == "width = 4"


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "Sized(3)", "height": 4},
        {"backend": "S[Sized(3),Sized]", "width": 4},
        {"backend": "Z", "define": {"Z": "S[Sized(3)]"}, "width": 4},
        {"global": {"width": 4}, "a": {"backend": "Sized(3)"}, "b": {"backend": "Sized"}},
        {"backend": "Reflect[part,Identity]", "part": "Sized"},
        {"backend": "Fallback[Elsewhere,Sized(3)]", "width": 4},
        {"backend": "S[ModelLoader(model=x.a)[(.a)Identity,(.b)Sized],Sized]", "width": 4},
        {"backend": "ModelLoader(model=x.a)[(.b)Sized(3),(.a)Sized]", "width": 4},
    ],
)
def test_an_option_that_counts_somewhere_is_not(config):
    assert codes(config) == []


def test_a_reload_of_an_option_without_effect_warns_and_one_with_does_not():
    with headrace.pipe({"backend": "Sized(3)", "height": 4}) as pipe:
        with pytest.warns(UserWarning, match="nothing uses 'width'") as caught:
            pipe.reload("main", {"width": 9})
        assert {one.filename for one in caught} == {__file__}
        pipe.reload("main", {"height": 9})  # warnings are errors in these tests
        assert codes(pipe.config) == ["unused_option"]


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({"backend": "Pairs"}, True),
        ({"backend": "Identity", "min": 2, "max": 4}, True),
        ({"node_entrypoint": "Register[Batching[Pairs]]"}, True),
        ({"backend": "Pairs", "batching_timeout": 5}, False),
        ({"backend": "Pairs", "pad": True}, False),
        ({"backend": "Identity", "max": 4}, False),
    ],
)
def test_a_least_batch_that_nothing_waits_for_or_fills_up(keys, warned):
    made("Pairs", min=2, max=4)
    assert ("min_without_wait" in codes({"n": keys})) is warned


# Maps.


def graph(source, **more):
    return {
        "a": {"backend": "Sized", "next": "b"},
        "b": {"backend": "Sized", "map": f"a[result:data,{source}:x]", "next": "c"},
        "c": {"backend": "Identity", **more},
    }


def test_a_map_from_a_key_that_its_node_does_not_write_is_told():
    (found,) = warnings(graph("sizze"))
    assert (found["code"], found["path"]) == ("map_source", "b.map")
    assert "takes 'sizze' from 'a', whose backends do not write it" in found["message"]
    assert "size" in found["hint"]
    (found,) = warnings(graph("size", map="b[result:data,sizze:size]"))
    assert found["path"] == "c.map"


def test_a_map_past_a_node_without_one_finds_what_was_before_it():
    behind = {"backend": "Identity", "map": "c[x:data,size:y]"}
    config = {**graph("size", next="d"), "d": behind}
    assert codes(config) == []
    behind["map"] = "c[z:data]"
    (found,) = warnings(config)
    assert found["path"] == "d.map"


@pytest.mark.parametrize("source", ["size", "result", "data", "request_id"])
def test_a_map_from_what_is_written_is_right(source):
    assert codes(graph(source, map="b[size:data,x:x]")) == []


def test_a_map_past_a_node_that_may_be_passed_by_finds_what_was_before_it():
    config = {
        "a": {"backend": "Sized", "next": "b"},
        "b": {"backend": "Sized", "map": "a[result:data,size:before]", "next": "c"},
        "c": {"backend": "Identity", "or": True, "map": "b[data:data]", "next": "d"},
        "d": {"backend": "Identity", "map": "c[before:data]"},
    }
    assert codes(config) == []


class Hinted(TypedDict, total=False):
    hint: str


@pytest.mark.parametrize(
    "body",
    [{"writes": Hinted}, {"base": object, "forward": Sized.forward}],
    ids=["hinted", "silent"],
)
def test_a_key_that_may_be_written_is_no_wrong_source(body):
    made("MayWrite", **body)
    behind = {"backend": "Identity", "map": "a[hint:data]"}
    assert codes({"a": {"backend": "MayWrite", "next": "b"}, "b": behind}) == []


# Instances, devices and cores.


@pytest.mark.parametrize(
    ("keys", "unused"),
    [
        ({"device": ["cuda:0", "cuda:1"]}, "cuda:1"),
        ({"device": ["a", "b", "c"], "instance_num": 2}, "c"),
        ({"device": ["a", "b"], "instance_num": 2}, None),
        ({"device": ["a", "b"], "instance_num": 4}, None),
        ({"device": "a"}, None),
    ],
)
def test_devices_that_no_instance_runs_on_are_told(keys, unused):
    found = warnings({"backend": "Sized", **keys})
    assert [one["code"] for one in found] == (["device_unused"] if unused else [])
    assert unused is None or found[0]["message"].endswith(f"nothing runs on {unused}")


@pytest.mark.parametrize(
    ("cores", "config", "message"),
    [
        (2, {"backend": "S[Sized,Identity]"}, True),
        (2, {"backend": "Sized", "device": "cpu"}, True),
        (2, {"backend": "Sized", "instance_num": 2}, False),
        (1, {"backend": "Sized"}, False),
        (8, {"backend": "Identity"}, False),
        (8, {"backend": "Owner"}, False),
        (8, {"backend": "Sized", "device": "cuda:0"}, False),
        (2, {"a": {"backend": "Sized"}, "b": {"backend": "Sized"}}, False),
    ],
)
def test_cores_that_one_instance_leaves_idle_are_told(cores, config, message, monkeypatch):
    monkeypatch.setenv("PYTHON_CPU_COUNT", str(cores))
    assert codes(config) == (["idle_cores"] if message else [])


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("S[Sized,Owner]", True),
        ("S[Sized,S[Identity,Owner]]", True),
        ("Owner", False),
        ("S[Owner,Sized]", False),
        ("S[Identity,Owner]", False),
        ("S[Sized,BackgroundThread[Owner]]", False),
        ("S[BackgroundThread[Sized],Owner]", False),
        ("S[OfFile,Owner]", False),
        ("S[Owner,OfFile,Owner]", False),
        ("S[Sized,OfFile,Owner]", True),
    ],
)
def test_work_that_a_backend_takes_into_its_own_thread_is_told(expression, message):
    found = warnings({"backend": expression})
    assert [one["code"] for one in found] == (["work_before_own_thread"] if message else [])
    # BackgroundThread would give the work back to its callers, but as many at a time as before.
    assert not message or "BackgroundThread" not in found[0]["hint"]
    assert not message or found[0]["message"].startswith("Sized before Owner, ")


# Keys as others call them.


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("batch_size", "max"),
        ("max_batch_size", "max"),
        ("extend", "extends"),
        ("imports", "import"),
        ("workers", "instance_num"),
        ("num_workers", "instance_num"),
        ("preferred_batch_size", "batch_sizes"),
        ("max_queue_delay", "batching_timeout"),
        ("gpus", "device"),
        ("widht", "width"),
    ],
)
def test_a_key_of_other_systems_is_told_ours(key, ours):
    for config in (
        {"backend": "Sized", key: 2},
        {"n": {"backend": "Sized", key: 2}},
        {"global": {key: 2}, "n": {"backend": "Sized"}},
    ):
        assert problem(config).suggestion == ours


def test_beside_a_misspelt_backend_a_key_of_other_systems_is_told_ours():
    """The key is near to one of a node, so it is no option of a backend that is not here."""
    found = problems({"backend": "S[Sized,Sizd]", "batch_size": 2})
    assert [p.suggestion for p in found] == ["Sized", "max"]


def test_a_key_that_a_backend_may_have_which_is_not_here_is_no_second_problem():
    assert [p.code for p in problems({"backend": "Elsewhere", "workers": 3})] == ["missing_plugin"]


@pytest.mark.parametrize(
    ("value", "near"),
    [("4x3x224x224", "4"), ("0x10", None), ("4 x 3", None), ("x4", None), ("many", None)],
)
def test_for_a_shape_in_place_of_the_weight_of_a_batch_the_first_axis_is_told(value, near):
    assert problem({"backend": "Sized", "max": value}).suggestion == near


def test_a_backend_may_have_such_an_option():
    class Options(headrace.Options):
        workers: int = 1

    made("Loader", Options=Options)
    found = headrace.explain({"backend": "Loader", "workers": 3})
    assert found["nodes"]["main"]["tree"]["options"]["workers"] == {"value": 3, "origin": "node"}


def test_a_key_of_the_node_among_args_is_told_its_place():
    found = problem({"backend": "Sized(batch_size=3)"})
    assert found.hint == "'max' is a key of the node: max = ..."


@pytest.mark.parametrize(
    ("table", "keys", "meant"),
    [("glbal", {"width": 2}, "global"), ("defin", {"Z": "Sized"}, "define")],
)
@pytest.mark.parametrize("beside", [{"n": {"backend": "Sized"}}, {"backend": "Sized"}])
def test_a_misspelt_table_is_one_problem_that_names_the_right_one(table, keys, meant, beside):
    found = problem({table: keys, **beside})
    assert (found.path.removeprefix("main."), found.suggestion) == (table, meant)
    assert "n" not in beside or f"[{meant}]" in (found.hint or "")


def test_a_node_may_have_nearly_the_name_of_a_table():
    found = headrace.explain({"globe": {"backend": "Sized"}})
    assert list(found["nodes"]) == ["globe"]


SETUP = "InstancesRegister[Reflect[backend]],Register[Batching[InstanceDispatcher]]"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"node_entrypoint": "Reflect[backend]"}, []),
        ({"node_entrypoint": f"IoC[{SETUP};Forward[node.main]]"}, []),
        ({"node_entrypoint": f"List[{SETUP}]"}, []),
        ({"node_entrypoint": "S[Identity]"}, ["backend_unused"]),
        ({"init": "Register(node.main)[Identity]"}, ["backend_unused"]),
        (
            {"node_entrypoint": f"IoC[{SETUP};S[Identity,Forward[node.main]]]"},
            ["entrypoint_bypassed"],
        ),
    ],
)
def test_what_a_node_never_builds_or_never_calls_is_a_warning(keys, expected):
    found = warnings({"backend": "Identity", **keys})
    assert [one["code"] for one in found] == expected
    paths = {"backend_unused": "main.backend", "entrypoint_bypassed": "main.node_entrypoint"}
    assert [one["path"] for one in found] == [paths[code] for code in expected]


def test_what_a_class_finds_suspicious_in_its_options_is_told_with_its_node():
    class Suspicious(headrace.Backend):
        class Options(headrace.Options):
            size: int = 1

        max = 16

        @classmethod
        def lint(cls, options, largest_batch):
            if options.size > 4:
                yield f"size {options.size} with batches of {largest_batch}"

        def forward(self, batch):
            raise AssertionError("nothing is built")

    class Broken(Suspicious):
        @classmethod
        def lint(cls, options, largest_batch):
            return 1 / 0

    headrace.register("Suspicious", Suspicious, replace=True)
    headrace.register("Broken", Broken, replace=True)
    config = {
        "fine": {"backend": "S[Suspicious(size=3),Suspicious]", "max": 8},
        "odd": {"backend": "S[Suspicious(size=5),Broken]", "max": 8},
    }
    found = [one for one in warnings(config) if one["code"] == "backend_warning"]
    assert [one["path"] for one in found] == ["odd.backend"] * 2
    assert found[0]["message"] == "size 5 with batches of 8"
    assert "Broken: lint raised" in found[1]["message"]
    assert "ZeroDivisionError" in found[1]["message"]


@pytest.mark.parametrize("lint", ["always", lambda self: (), lambda self, options, most: ()])
def test_a_lint_that_cannot_be_called_on_the_class_is_refused_by_name(lint):
    cls = type("Told", (headrace.Backend,), {"forward": lambda self, batch: None, "lint": lint})
    with pytest.raises(
        headrace.errors.PluginError, match=r"def lint\(cls, options, largest_batch\)"
    ):
        headrace.register("Told", cls, replace=True)
