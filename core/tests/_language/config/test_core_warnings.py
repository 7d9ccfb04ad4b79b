"""Options without effect, and keys as others call them."""

from __future__ import annotations

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


def made(name, base=Sized, **body):
    """Register a class that differs from its base in what is given."""
    headrace.register(name, type(name, (base,), body), replace=True)


@pytest.fixture(autouse=True)
def backends(known_elsewhere):
    made("Sized")
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
        {"global": {"width": 4}, "a": {"backend": "Sized(3)"}, "b": {"backend": "Sized(3)"}},
        {"global": {"width": 4}, "main": {"backend": "Sized", "width": 5}},
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
        {"global": {"width": 4}, "a": {"backend": "Sized(3)"}, "b": {"backend": "Sized"}},
        {"backend": "Reflect[part,Identity]", "part": "Sized"},
    ],
)
def test_an_option_that_counts_somewhere_is_not(config):
    assert codes(config) == []


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
    [("glbal", {"width": 2}, "global")],
)
@pytest.mark.parametrize("beside", [{"n": {"backend": "Sized"}}, {"backend": "Sized"}])
def test_a_misspelt_table_is_one_problem_that_names_the_right_one(table, keys, meant, beside):
    found = problem({table: keys, **beside})
    assert (found.path.removeprefix("main."), found.suggestion) == (table, meant)
    assert "n" not in beside or f"[{meant}]" in (found.hint or "")


def test_a_node_may_have_nearly_the_name_of_a_table():
    found = headrace.explain({"globe": {"backend": "Sized"}})
    assert list(found["nodes"]) == ["globe"]
