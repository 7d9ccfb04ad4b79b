"""What is allowed and hardly meant: the warnings of check and explain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypedDict

import pytest

import headrace
from headrace_cli.lint import warnings as lint
from headrace_cli.lint.codes import CODES
from headrace_cli.lint.warnings import warnings_about


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
def backends(monkeypatch):
    made("Sized")
    made("Owner", owns_thread=True)
    made("OfFile", Options=OfFile)
    monkeypatch.setenv("PYTHON_CPU_COUNT", "1")


def warnings(config):
    found = warnings_about(headrace.PipelineConfig.load(config))
    return [one.to_dict() for one in found]


def codes(config):
    return [warning["code"] for warning in warnings(config)]


def test_check_says_that_a_max_is_cut_by_the_class_of_a_backend():
    made("Counts", max=None)
    made("AtMostFour", max=4)
    found = warnings({"backend": "S[Counts,AtMostFour]", "max": 8})
    (cut,) = (one for one in found if one["code"] == "max_cut")
    assert "max is 8, and AtMostFour takes at most 4" in cut["message"]
    for config in (
        {"backend": "AtMostFour", "max": 4},
        {"backend": "AtMostFour"},
        {"backend": "Counts", "max": 8},
        {"global": {"max": 8}, "one": {"backend": "AtMostFour"}},
    ):
        assert "max_cut" not in codes(config)


def test_a_wait_among_the_args_of_the_batch_policy_is_a_wait():
    keys = {"backend": "Identity", "min": 2, "max": 3}
    waits = {**keys, "batch_policy": "greedy(batching_timeout=3)"}
    assert ["min_without_wait" in codes(one) for one in (keys, waits)] == [True, False]


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({"backend": "Pairs"}, True),
        ({"backend": "Identity", "min": 2, "max": 4}, True),
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


def test_idle_cores_are_used_by_auto_and_not_told_where_a_node_has_one_instance(monkeypatch):
    monkeypatch.setenv("PYTHON_CPU_COUNT", "6")
    made("Carries", auto_instances=classmethod(lambda cls, options, device, threads: threads))
    made("One", most_instances=classmethod(lambda cls, options: 1))
    made("Keeps", stateful=True)
    (found,) = warnings({"backend": "Carries"})
    assert 'Set instance_num = "auto", or up to 6' in found["hint"]
    for backend in ("Carries", "Sized", "One", "S[Carries,Keeps]"):
        assert codes({"backend": backend, "instance_num": "auto"}) == []
    for backend in ("S[Carries,One]", "S[Keeps,Carries]"):  # no number helps these
        assert codes({"backend": backend}) == []


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


def hints(config):
    return [(one["code"], one["hint"]) for one in warnings(config)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"batching_timeout": 0.005}, [("batching_timeout_unit", "Write 5, if")]),
        ({"batching_timeout": 5_000_000}, [("batching_timeout_unit", "Write 5000, if")]),
        ({"batching_timeout": 5}, []),
        ({"timeout_ms": 2_000_000}, [("timeout_unit", "Write 500")]),
        ({"timeout_ms": 600_000}, []),
    ],
)
def test_a_time_in_another_unit_is_told(keys, expected):
    found = hints({"backend": "Sized", **keys})
    assert [code for code, _ in found] == [code for code, _ in expected]
    assert all(
        hint.startswith(start) for (_, hint), (_, start) in zip(found, expected, strict=True)
    )
    assert codes({"backend": "Sized", **keys, "allow": [code for code, _ in expected]}) == []


def test_a_bound_where_no_request_enters_is_told():
    nodes = {"a": {"backend": "Sized", "next": "b"}, "b": {"backend": "Sized", "queue_size": 4}}
    assert codes(nodes) == ["queue_size_unused"]
    assert codes({"a": {**nodes["a"], "queue_size": 4}, "b": {"backend": "Sized"}}) == []


def test_a_device_that_no_backend_uses_is_told():
    made("OnTheCpu", auto_instances=classmethod(lambda cls, options, device, threads: threads))
    assert codes({"backend": "OnTheCpu", "device": "cuda:0"}) == ["device_unused"]
    assert codes({"backend": "OnTheCpu", "device": "cpu"}) == []
    assert codes({"backend": "S[OnTheCpu,Sized]", "device": "cuda:0"}) == []


def test_a_class_gives_its_warning_a_code_that_the_node_allows():
    def lint(cls, options, largest_batch):
        yield headrace.errors.Problem("normalization", "it is scaled twice", hint="Scale once.")
        yield "a sentence"

    made("Says", lint=classmethod(lint))
    assert hints({"backend": "Says"}) == [
        ("normalization", "Scale once."),
        ("backend_warning", None),
    ]
    assert codes({"backend": "Says", "allow": ["normalization", "backend_warning"]}) == []


def test_a_code_that_there_is_not_is_told_with_the_nearest():
    ((code, hint),) = hints({"backend": "Sized", "allow": ["normalisation"]})
    assert (code, "'normalization'" in hint) == ("unused_allow", True)
    assert codes({"backend": "Sized", "allow": ["of_a_plugin"]}) == []


def test_a_value_without_effect_is_allowed_like_all_others():
    node = {"backend": "Sized(2)", "width": 3}
    assert codes(node) == ["unused_option"]
    assert codes({**node, "allow": ["unused_option"]}) == []


class Reads(Sized):
    """Take a file.

    Reads:
        data: ``bytes``, one file.

    Writes:
        result: ``uint8 [H, W, 3]``.

    Batch:
        1.
    """


class Same(Sized):
    """Change a picture.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]``.

    Writes:
        result: Same dtype, other sides.
    """


class Gives(Sized):
    """Make a tensor.

    Reads:
        data: ``uint8 [H, W, C]``.

    Writes:
        result: ``float32 [C, H, W]``, with ``width=2`` ``[H, W, C]``.
    """


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("Reads,Same,Gives", False),
        ("Same,Reads", True),
        ("Reads,Gives,Same", True),
        ("Reads,Gives(2),Same", False),
        ("Gives,Gives", True),
        ("Gives,Sized,Same", False),
    ],
)
def test_a_row_in_the_wrong_order_is_told_by_its_documentation(row, wrong):
    for name, base in (("Reads", Reads), ("Same", Same), ("Gives", Gives)):
        headrace.register(name, base, replace=True)
    assert codes({"backend": f"S[{row}]"}) == ["types"] * wrong
    assert codes({"backend": f"S[{row}]", "allow": ["types"]}) == []


def test_each_code_of_the_sources_is_on_the_page():
    text = Path(lint.__file__).read_text("utf-8")
    written = re.findall(r'(?:yield|\]\)?, ) ?"(\w+)", "\w+"', text)
    assert {*written} <= {*CODES}
    assert len({*written}) >= 10


class Resizes(Sized):
    """Resize a picture.

    Reads:
        data: ``uint8 [H, W, C]``.

    Writes:
        result: Same dtype, ``[height, width, C]``.
    """


class Turns(Sized):
    """Make a tensor.

    Reads:
        data: ``uint8 [H, W, C]``.

    Writes:
        result: ``float32 [C, H, W]``.
    """


@pytest.mark.parametrize(
    ("dtype", "shape", "wrong"),
    [
        ("float32", [None, 3, 40, 60], False),
        ("float32", [None, 40, 60, 3], False),
        ("float32", [None, 3, None, None], False),
        ("float32", None, False),
        ("float16", [None, 3, 40, 60], True),
        ("float32", [None, 3, 60, 40], True),
        ("float32", [None, 80, 60, 3], True),
    ],
)
def test_a_built_model_says_which_pictures_it_refuses(dtype, shape, wrong):
    def describe(self):
        return {"inputs": {"x": {"dtype": dtype, "shape": shape}}}

    made("Model", describe=describe)
    for name, base in (("Resizes", Resizes), ("Turns", Turns)):
        headrace.register(name, base, replace=True)
    config = headrace.PipelineConfig.load({"backend": "S[Resizes(60,height=40),Turns,Model]"})
    assert warnings_about(config) == []
    with headrace.pipe(config) as pipe:
        found = warnings_about(config, pipe.describe()["nodes"])
    assert [one.code for one in found] == ["types"] * wrong
