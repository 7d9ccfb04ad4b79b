"""The page for users of torchpipe: its file has the problems that are listed, its tables name what there is."""

from __future__ import annotations

import re

import pytest
from pages import Page

import headrace
from headrace._language.config.sections import NodeKeys
from headrace._language.registry.discovery import CORE_BACKENDS, KNOWN_ELSEWHERE
from headrace.errors import ConfigError

PAGE = Page("docs/from_torchpipe.md")
BEFORE, AFTER = PAGE.blocks("toml")
NAME = re.compile(r"[A-Z]\w+")


def rows(heading: str) -> list[list[str]]:
    return Page("docs/from_torchpipe.md", heading).rows()


@pytest.fixture
def load(tmp_path):
    (tmp_path / "resnet50.onnx").touch()

    def load(text):
        (tmp_path / "a.toml").write_text(text, encoding="utf-8")
        return headrace.PipelineConfig.load(tmp_path / "a.toml")

    return load


def test_a_file_of_torchpipe_has_the_problems_that_the_page_lists(load):
    pytest.importorskip("headrace_trt")
    with pytest.raises(ConfigError) as caught:
        load(BEFORE)
    found = {f"{one.path}: {one.message}": one.suggestion for one in caught.value.problems}
    listed = {said.strip("`"): write for said, write in rows("A file, before and after")}
    assert len(found) == len(listed)
    for said, write in listed.items():
        (suggestion,) = [near for whole, near in found.items() if whole.startswith(said)]
        assert ("as it says" in write) == (suggestion is not None)
        assert suggestion is None or f"{suggestion}`" in write


def test_the_file_that_it_becomes_is_accepted(load):
    pytest.importorskip("headrace_trt")
    assert load(AFTER).nodes == ("decode", "classify")


def test_the_names_that_the_page_gives_in_place_of_others_are_there():
    onnx2tensorrt = pytest.importorskip("headrace_trt.backends.onnx2tensorrt").Onnx2Tensorrt
    letterbox = pytest.importorskip("headrace_cv.letterbox").LetterBoxMat
    words = {*CORE_BACKENDS, *KNOWN_ELSEWHERE}
    given = [cell for row in rows("Backends") for cell in NAME.findall(row[1])]
    kept = re.findall(
        r"`([A-Z]\w*)`", PAGE.text.partition("## Backends\n")[2].partition("apart")[0]
    )
    assert len(given) > 20
    assert len(kept) > 15
    assert {*given, *kept} - words == set()
    keys = {*NodeKeys.model_fields, *onnx2tensorrt.Options.model_fields}
    named = {key for row in rows("Keys of a node") for key in re.findall(r"`(\w+)`", row[1])}
    assert len(named) >= 8
    assert named - {*keys, *letterbox.Options.model_fields} == set()


def test_names_of_torchpipe_that_the_page_replaces_mean_nothing_here():
    words = {*CORE_BACKENDS, *KNOWN_ELSEWHERE}
    replaced = {cell for row in rows("Backends") for cell in re.findall(r"`([A-Z]\w*)`", row[0])}
    assert len(replaced) > 30
    translated = {"ModelLoadder", "ProxyFromParam", "BackendProxy"}  # by headrace-flow
    assert replaced & words == {"Benchmark", *translated}


FRONT = "IoC[InstancesRegister[BackgroundThread[Reflect[backend]]],Register[DI[Batching,InstanceDispatcher]];Forward[node.{node_name}]]"
X = {"backend": "Identity"}
LOADS = {
    "ModelLoadder": {"backend": "ModelLoadder[(.a)Identity,(.b)Identity]", "model": "x.a"},
    "ProxyFromParam": {"backend": "ProxyFromParam[post,Identity]"},
    "BackendProxy": {"main": {**X, "node_entrypoint": "Register[Batching[BackendProxy]]"}},
}
"""The names in the first column of the table of backends that are translated, each in a configuration."""
REFUSED = {
    "X(a=1/b=2)": ({"backend": "Call(function=math:sqrt/b=2)"}, "expected ',' or ')'"),
    "Send[q]": ({"backend": "Send[q]"}, "Send takes nothing in brackets"),
    "Forward[dag.x]": ({"backend": "Forward[dag.x]"}, "no instance is called 'dag.x'"),
    "TorchStreamPool(max_stream=2)": (
        {"backend": "TorchStreamPool(max_stream=2)[Identity]"},
        "unknown backend 'TorchStreamPool'",
    ),
    "Loop(queue,target=x)": ({"backend": "Loop(queue,target=x)[Identity]"}, "target"),
    "max": ({**X, "max": "4x3x224x224"}, "Input should be a valid integer"),
    "batching_timeout": ({**X, "batching_timeout": -1}, "greater than or equal to 0"),
    "backend": ({"a": {"max": 4}}, "node 'a' needs the key 'backend'"),
    "X::dependency": (
        {**X, "Identity::dependency": "X"},
        "no backend in node 'main' has an option",
    ),
}
"""What stands in the first columns and is neither a name nor a key alone, with what the error says."""


def first_column(heading: str) -> list[str]:
    """Return what stands in the first column of a table, each text of a row apart."""
    return [text.strip('"') for row in rows(heading) for text in re.findall(r"`([^`]+)`", row[0])]


def advice(name):
    """Return what the row of a name says: the names that take its place, else what to mind."""
    for heading in ("Backends", "Keys of a node"):
        for theirs, here, mind in rows(heading):
            names = [re.split(r"[(\[]", one)[0] for one in re.findall(r"`([^`]+)`", theirs)]
            if name in names:
                ours = re.findall(r"`([^`]+)`", here)
                one = ours[names.index(name)] if len(ours) == len(names) else " or ".join(ours)
                return one or re.split(r"[`\[]", mind)[0].strip()
    raise KeyError(name)


def problems(config):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    return caught.value.problems


@pytest.mark.parametrize("name", [one for one in first_column("Backends") if NAME.fullmatch(one)])
def test_a_name_of_the_table_of_backends_is_translated_or_refused_where_it_stands(name):
    if name in LOADS:
        assert headrace.explain(LOADS[name])["nodes"]["main"]["expression"]
    elif name not in KNOWN_ELSEWHERE:
        found = problems({"backend": f"S[Identity,{name}]"})[0]
        assert (found.code, found.text[slice(*found.span)]) == ("unknown_backend", name)
        assert found.hint.startswith(f"{name} of torchpipe")
        assert advice(name) in found.hint


@pytest.mark.parametrize(
    "name",
    [
        "model::cache",
        "model::timingcache",
        "max_workspace_size",
        "node_name",
        "default_node_name",
        "X::args",
        "hardward_compatibility",
        "pad_val",
    ],
)
def test_a_key_that_has_another_name_here_is_refused_where_it_stands(name):
    assert name in first_column("Keys of a node") or name == "min"
    found = problems({**X, name: "x"})[0]
    assert (found.code, found.path) == ("unknown_key", f"main.{name}")
    if "::" not in name or name.startswith("model"):
        assert advice(name) in found.hint


@pytest.mark.parametrize("row", REFUSED)
def test_any_other_row_has_a_text_that_is_refused(row):
    config, says = REFUSED[row]
    assert row in [*first_column("Keys of a node"), *first_column("Backends")]
    assert any(says in one.message for one in problems(config)), problems(config)


@pytest.mark.parametrize(
    "word", ["Proxy", "Register", "InstancesRegister", "List", "DagDispatcher", "Restart"]
)
def test_the_words_that_the_page_gives_to_flow_are_its_own(word):
    assert KNOWN_ELSEWHERE[word] == "headrace-flow"


def test_a_file_of_torchpipe_that_wires_itself_loads():
    config = {
        "global": {"entrypoint": "S[Identity,DagDispatcher]", "node_entrypoint": FRONT},
        "a": {**X, "instance_num": "2", "next": "b"},
        "b": {"backend": "Call(builtins:str)"},
    }
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 3})["result"] == "3"
        assert list(pipe.describe()["nodes"]) == ["entrypoint", "a", "b"]
