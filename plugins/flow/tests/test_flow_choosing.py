"""Fallback builds the first child that can be built here; ModelLoader stands for the branch of its model's suffix."""

import importlib.metadata
import logging

import pytest

import headrace
from headrace.errors import ConfigError, SetupError

closed = []


class Lower(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"].lower()

    def close(self):
        closed.append("Lower")


class Broken(Lower):
    min, max = 2, 9

    class Options(headrace.Options):
        level: int = 0

    def init(self, options, context):
        raise RuntimeError("no device")


class ColdOnly(Lower):
    def warm_up(self):
        raise RuntimeError("cold")


class SecondAlone(Lower):
    def init(self, options, context):
        if context.instance_index == 0:
            raise RuntimeError("first")


class Wide(Lower):
    reads = ("wide",)

    def forward(self, batch):
        for request in batch:
            request["result"] = request["wide"]


@pytest.fixture(autouse=True)
def names():
    closed.clear()
    for cls in (Lower, Broken, ColdOnly, SecondAlone, Wide):
        headrace.register(cls.__name__, cls, replace=True)
    headrace.register("Up", str.upper, replace=True)


def answer(config, **request):
    with headrace.pipe(config) as pipe:
        return pipe({"data": "aB", **request})["result"], pipe.describe()


@pytest.mark.parametrize("first", ["Broken", "ColdOnly", "S[Up,Broken]", "Process[Identity]"])
def test_the_first_that_can_be_built_here_is_taken(first, caplog, monkeypatch):
    found = [*importlib.metadata.distributions()]
    left = [one for one in found if one.metadata["Name"] != "headrace-process"]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: left)
    monkeypatch.setenv("HEADRACE_PLUGINS", "-nothing")  # another value than before: look again
    with caplog.at_level(logging.INFO, "headrace.build"):
        result, described = answer({"backend": f"S[Identity,Fallback[{first},Lower]]"})
    assert result == "ab"
    built = described["nodes"]["main"]["tree"]["children"][1]["built"]
    assert built["chosen"] == "Lower"
    assert len(built["not_chosen"]) == 1
    assert "Lower was chosen" in caplog.text


def test_what_a_failed_branch_had_built_is_closed_at_once():
    with headrace.pipe({"backend": "Fallback[S[Lower,Broken],Up]"}) as pipe:
        assert closed == ["Lower"]
        assert pipe({"data": "a"})["result"] == "A"


def test_wrong_options_and_unknown_names_do_not_mean_next():
    for text in ("Fallback[Broken(level=x),Up]", "Fallback[Borken,Up]"):
        with pytest.raises(ConfigError):
            headrace.pipe({"backend": text})


@pytest.mark.parametrize(
    ("text", "near"),
    [("Uper,Identity", "Upper"), ("S[Lowwer],Identity", "Lower"), ("Qwertz", None)],
)
def test_a_misspelt_name_is_an_error_with_the_nearest_one(text, near):
    headrace.register("Upper", str.upper, replace=True)
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load({"backend": f"Fallback[{text}]"})
    (found,) = caught.value.problems
    assert (found.code, found.path, found.suggestion) == ("unknown_backend", "main.backend", near)


def test_what_is_wrong_in_a_node_is_told_where_a_branch_names_it():
    for trying in ("Fallback[Forward[node.x],Up]", "ModelLoader(model=m.b)[(.a)x.0,(.b)Up]"):
        source = {"n": {"backend": trying}, "x": {"backend": "Absent"}}
        with pytest.raises(ConfigError) as caught:
            headrace.PipelineConfig.load(source)
        assert ("unknown_backend", "x.backend") in [
            (found.code, found.path) for found in caught.value.problems
        ]


def test_the_range_is_open_until_a_child_was_chosen():
    config = {"backend": "Fallback[Broken,Up]", "max": 64}
    assert headrace.explain(config)["nodes"]["main"]["range"] == [1, 64]
    with headrace.pipe(config) as pipe:
        assert pipe.describe()["nodes"]["main"]["range"] == [1, 64]


def test_when_all_fail_every_reason_is_given():
    with pytest.raises(SetupError, match=r"Broken: .*no device.*; ColdOnly: .*cold"):
        headrace.pipe({"backend": "Fallback[Broken,ColdOnly]"})


def test_instances_may_choose_otherwise():
    config = {"backend": "Fallback[SecondAlone,Up]", "instance_num": 2}
    built = answer(config)[1]["nodes"]["main"]["tree"]["built"]
    assert (built["chosen"], built["instances"]["1"]["chosen"]) == ("Up", "SecondAlone")


def test_the_keys_that_a_request_needs_are_those_of_the_chosen_child():
    with headrace.pipe({"backend": "Fallback[Broken,Wide]"}) as pipe:
        assert pipe({"wide": 3})["result"] == 3
        with pytest.raises(headrace.errors.InputError, match="has no 'wide'"):
            pipe({"data": 3})


def test_the_suffix_of_the_model_chooses_and_what_only_others_know_is_left_out():
    text = "S[ModelLoader[(.a)Up,(.b,.c)Broken],Lower]"
    config = {"backend": text, "model": "x.A", "level": 3}
    assert answer(config)[0] == "ab"
    assert headrace.PipelineConfig.load(config).plan().nodes["main"].expression == "S[Up,Lower]"
    shared = {"backend": "ModelLoader[(.a)Up,(.b)Lower]"}
    assert (
        answer({"global": shared, "x": {"model": "f.a", "next": "y"}, "y": {"model": "f.b"}})[0]
        == "ab"
    )
    assert answer({"backend": "ModelLoadder(model=q.b)[(.a)Up,(.b)Lower]"})[0] == "ab"


def test_the_model_may_be_a_variable(monkeypatch):
    monkeypatch.setenv("HR_MODEL", "m.b")
    text = "ModelLoader[(.a)Up,(.b)Lower]"
    assert answer({"backend": text, "model": "${HR_MODEL}"})[0] == "ab"
    assert answer({"backend": text, "model": "${HR_NONE:-m.a}"})[0] == "AB"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ModelLoader[(.a)Up,(.b)Lower]", "suffix"),
        ("ModelLoader[(.a)Up,Lower]", "prefix"),
        ("ModelLoader[(.a)Up,(.a)Lower]", "prefix"),
    ],
)
def test_what_is_wrong_has_its_place(text, code):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load({"backend": text, "model": "m.z"})
    (found,) = caught.value.problems
    assert (found.code, found.path) == (code, "main.backend")
    assert found.text[slice(*found.span)] in ("ModelLoader", "Lower")
