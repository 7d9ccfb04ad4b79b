"""Configurations: shapes, who wins, placeholders, ``extends``, ``import``, paths, copies."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

import headrace
from headrace._config.problems import with_room
from headrace._config.shape import LinkKeys, NodeKeys
from headrace._registry.registry import registry
from headrace.errors import ConfigError


class Show(headrace.Backend):
    """Gives its options as the result."""

    class Options(headrace.Options):
        a: int = Field(0, description="A number.")
        text: str = Field("", description="A text.")
        max: int | None = Field(None, description="A name that nodes have too.")
        many: list[str] = Field([], description="Texts.")
        table: dict[str, int] = Field({}, description="A table.")
        model: headrace.FilePath | None = Field(None, description="A file.")
        models: list[headrace.FilePath] = Field([], description="Files.")
        cache: headrace.OutputPath | None = Field(None, description="A file to write.")

    def init(self, options, context):
        self.options, self.context = options, context

    def forward(self, batch):
        for request in batch:
            request["result"] = self.options


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    monkeypatch.setattr(registry, "local", {"Show": Show, "Other": type("Other", (Show,), {})})


def options(source, node="main", **request):
    with headrace.pipe(source) as pipe:
        return pipe({"data": 1, "node_name": node, **request})["result"]


def problems(source, **arguments):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(source, **arguments)
    return caught.value.problems


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# Shapes.


def test_a_top_level_backend_makes_one_node_named_main():
    config = headrace.PipelineConfig.load({"backend": "Show", "a": 3, "max": 4})
    assert config.nodes == ("main",)
    assert options({"backend": "Show", "a": 3}).a == 3


def test_each_table_is_a_node_and_top_level_scalars_are_global():
    source = {"a": 5, "one": {"backend": "Show"}, "two-2": {"backend": "Show", "a": 6}}
    assert headrace.PipelineConfig.load(source).nodes == ("one", "two-2")
    assert options(source, "one").a == 5
    assert options(source, "two-2").a == 6


def test_a_table_without_backend_beside_a_backend_is_an_option():
    assert options({"backend": "Show", "table": {"x": 1}}).table == {"x": 1}
    assert options({"backend": "Show", "table": {}}).table == {}


def test_a_table_with_a_backend_beside_a_backend_is_an_error():
    (problem,) = problems({"backend": "Show", "x": {"backend": "Show"}})
    assert (problem.code, problem.path) == ("two_shapes", "x.backend")


def test_the_backend_may_stand_in_global():
    assert options({"global": {"backend": "Show", "a": 1}, "x": {}}, "x").a == 1


@pytest.mark.parametrize("name", ["1x", "_x", "a b", "é", "a.b", ""])
def test_a_node_is_a_letter_then_letters_digits_underscore_and_hyphen(name):
    (problem,) = problems({name: {"backend": "Show"}})
    assert problem.code == "node_name"


@pytest.mark.parametrize("source", [{}, {"global": {}}, {"a": 1}])
def test_a_configuration_without_a_node_is_an_error(source):
    assert problems(source)[0].code == "no_node"


def test_a_text_is_always_a_path():
    (problem,) = problems("Show")
    assert problem.code == "no_file"
    assert "Show" in problem.message
    assert "an expression goes under the key 'backend'" in problem.hint


def test_a_missing_file_is_not_taken_for_an_expression_nor_for_a_file_alike_in_its_suffix_alone(
    tmp_path,
):
    (tmp_path / "line.toml").write_text('backend = "Show"\n')
    (problem,) = problems(tmp_path / "base.toml")
    assert (problem.suggestion, problem.hint) == (None, None)
    (problem,) = problems(tmp_path / "lines.toml")
    assert problem.suggestion == str(tmp_path / "line.toml")


@pytest.mark.parametrize("source", [None, 3, ["Show"], b"Show"])
def test_anything_but_a_dict_a_path_and_a_configuration_is_a_type_error(source):
    with pytest.raises(TypeError):
        headrace.PipelineConfig.load(source)


def test_a_configuration_is_loaded_as_itself():
    config = headrace.PipelineConfig.load({"backend": "Show"})
    assert headrace.PipelineConfig.load(config) is config


def test_keys_that_are_no_texts_are_errors():
    (problem,) = problems({"main": {"backend": "Show", 3: 1}})
    assert (problem.code, problem.path) == ("key", "main")


# Who wins.

PRECEDENCE = [
    {"define": {"Z": "Show(a=1)"}},
    {"global": {"a": 2}},
    {"global": {"Show::a": 3}},
    {"main": {"a": 4}},
    {"main": {"Show::a": 5}},
]


@pytest.mark.parametrize("count", range(len(PRECEDENCE) + 1))
def test_the_nearer_place_wins(count):
    source = {"main": {"backend": "Z"}, "define": {"Z": "Show"}, "global": {}}
    for layer in PRECEDENCE[:count]:
        for table, keys in layer.items():
            source[table] = {**source[table], **keys}
    assert options(source).a == count


@pytest.mark.parametrize(
    ("inside", "scope", "value"),
    [("Show", "Show", lambda n: n), ("S[Reflect[a,Show]]", "Reflect", lambda n: f"Show(a={n})")],
    ids=["option", "reflected parameter"],
)
def test_one_order_holds_wherever_a_value_may_be_written(inside, scope, value):
    """All subsets of the seven places, the nearest last, against the greatest of the subset."""
    for written in range(2**7):
        stands = [n for n in range(1, 8) if written & 1 << n - 1]
        args = {n: f"(a='{value(n)}')" if n in stands else "" for n in (1, 2, 7)}
        source = {
            "define": {"Z": f"Y{args[2]}", "Y": f"X{args[1]}", "X": inside},
            "main": {"backend": f"Z{args[7]}"},
            "global": {},
        }
        for n, table, key in (
            (3, "global", "a"),
            (4, "global", f"{scope}::a"),
            (5, "main", "a"),
            (6, "main", f"{scope}::a"),
        ):
            if n in stands:
                source[table][key] = value(n)
        assert options(source).a == max(stands, default=0), stands


def test_args_in_the_expression_win_over_all():
    source = {"main": {"backend": "Show(a=9)", "a": 1, "Show::a": 2}, "global": {"a": 3}}
    assert options(source).a == 9


def test_a_global_key_is_the_default_of_all_nodes():
    source = {"global": {"max": 7, "instance_num": 2}, "x": {"backend": "Show"}, "y": {}}
    source["y"] = {"backend": "Show", "max": 3}
    plan = headrace.PipelineConfig.load(source)._plan
    assert (plan.nodes["x"].keys.max, plan.nodes["y"].keys.max) == (7, 3)
    assert plan.nodes["y"].keys.instance_num == 2


@pytest.mark.parametrize(
    ("key", "wrong", "own"),
    [
        ("max", 0, 4),
        ("min", "few", 1),
        ("pad", "perhaps", True),
        ("timeout_ms", float("nan"), 5),
        ("batch_sizes", [], [1]),
        ("queue_full", "block", "wait"),
        ("max", "${HEADRACE_TEST_UNSET}", 4),
    ],
)
@pytest.mark.parametrize("at_top", [False, True])
def test_a_wrong_global_key_is_an_error_also_where_every_node_has_its_own(key, wrong, own, at_top):
    nodes = {"x": {"backend": "Show", key: own}, "y": {"backend": "Show", key: own}}
    (problem,) = problems({key: wrong, **nodes} if at_top else {"global": {key: wrong}, **nodes})
    assert problem.path == f"global.{key}"


def test_global_keys_are_compared_with_each_other_only_where_a_node_has_both():
    source = {"global": {"min": 8, "max": 4}, "x": {"backend": "Show", "max": 16}}
    headrace.PipelineConfig.load({**source, "y": {"backend": "Show", "min": 2}})
    (problem,) = problems({**source, "y": {"backend": "Show"}})
    assert problem.message == "min = 8 is above max = 4"


def test_node_keys_are_never_options():
    assert options({"backend": "Show", "max": 4}).max is None
    assert options({"backend": "Show", "Show::max": 5, "max": 4}).max == 5
    assert options({"backend": "Show(max=6)", "max": 4}).max == 6


def test_a_scoped_key_is_for_the_backend_of_that_name_only():
    source = {"backend": "S[Show,Other]", "Show::a": 4}
    assert options(source).a == 0
    assert options({**source, "Other::a": 5}).a == 5


def test_equal_configurations_have_one_hash():
    first, same, other = (
        headrace.PipelineConfig.load({"backend": "Show", "max": n}) for n in (2, 2, 3)
    )
    assert {first: 1, same: 2} == {first: 2}
    assert len({first, same, other}) == 2


def test_a_none_is_as_if_the_key_was_not_there():
    assert options({"backend": "Show", "max": None, "init": None}).max is None
    keys = [*NodeKeys.model_fields, *(f.alias or k for k, f in LinkKeys.model_fields.items())]
    given = {key: None for key in keys if key != "backend"}
    explained = [headrace.explain({"backend": "Show", **more}) for more in (given, {})]
    assert explained[0]["nodes"] == explained[1]["nodes"]
    assert (
        headrace.explain({"backend": "Show", "each_errors": None})["nodes"] == explained[1]["nodes"]
    )
    shared = {
        "global": {"instance_num": 2, "max": 4},
        "n": {"backend": "Show", "instance_num": None},
    }
    tree = headrace.explain(shared)["nodes"]["n"]
    assert (tree["instance_num"], tree["range"]) == (1, [1, 4])


# Problems with keys.


def test_a_node_key_that_nobody_has_is_an_error_with_a_suggestion():
    found = problems({"backend": "Show", "instance_nun": 2, "txet": "x"})
    assert [(p.code, p.path, p.suggestion) for p in found] == [
        ("unknown_key", "main.instance_nun", "instance_num"),
        ("unknown_key", "main.txet", "text"),
    ]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"backend": "Show", "qqqq": 2}, "There are: a, cache, many, model"),
        ({"backend": "Identity", "main": {"max": 2}}, "A table is a node only at the top level"),
        ({"backend": "Qqqq"}, "`headrace plugins list` shows"),
        ({"backend": "Identity", "dispatch_policy": "greedy"}, "There are: best_fit."),
        ({"backend": "HasKey[Identity]"}, "key = ... in the node"),
        ({"backend": "Call[math:sqrt]"}, "stands in ( ): Call(math:sqrt)"),
        ({"backend": "Identity -> Identity"}, "S[A,B] runs A, then B"),
        ({"backend": "Identity", "define": {"1": "Identity"}}, "A letter or _, then"),
        ({"backend": "Z(max=1)", "define": {"Z": "S[Identity]"}}, "'max' is a key of the node"),
        ({"backend": "Z(n=1)", "define": {"Z": "S[Identity]"}}, "It has none."),
        ({"backend": "IoC[Show;Show(1)]"}, "Write them where it is built."),
    ],
)
def test_where_no_name_is_near_the_hint_says_what_to_do(source, hint):
    assert any(hint in (found.hint or "") for found in problems(source))


@pytest.mark.parametrize("key", ["batching_timeout", "timeout_ms", "max"])
def test_nan_is_called_by_its_name_in_keys_of_nodes_too(key):
    (found,) = problems({"backend": "Identity", key: float("nan")})
    assert found.message == "NaN is no value, got NaN"


def test_a_list_with_many_wrong_items_is_one_problem():
    (found,) = problems({"backend": "Show", "many": [1] * 100})
    assert "many[0]: Input should be a valid string, got 1" in found.message
    assert found.hint == "Quotes make it a text."


def test_the_line_of_a_key_shows_its_letters_as_they_are_written():
    (found,) = problems({"backend": "Show", "txet": "grün"})
    assert (found.text, found.span) == ('txet = "grün"', (0, 4))


def test_an_arg_of_a_definition_that_none_of_its_backends_has_is_an_error_with_a_suggestion():
    (found,) = problems({"backend": "Z(txet=1)", "define": {"Z": "S[Identity,Show]"}})
    assert (found.code, found.suggestion) == ("unknown_option", "text")


@pytest.mark.parametrize("shared", [False, True])
def test_a_node_key_with_a_scope_is_an_error_that_names_the_key(shared):
    source = {"main": {"backend": "Show"}, "global": {}}
    source["global" if shared else "main"]["Show::instance_num"] = 2
    (problem,) = problems(source)
    assert (problem.code, problem.suggestion) == ("unknown_key", "instance_num")


def test_a_global_key_is_an_error_only_if_no_node_has_it():
    headrace.PipelineConfig.load({"a": 1, "x": {"backend": "Show"}, "y": {"backend": "Identity"}})
    (problem,) = problems({"aa": 1, "x": {"backend": "Show"}})
    assert (problem.code, problem.path) == ("unknown_key", "global.aa")


def test_a_key_is_shown_with_its_value_and_a_caret():
    (problem,) = problems({"backend": "Show", "max": -4})
    message = "main.max: Input should be greater than or equal to 1, got -4"
    assert problem.render().splitlines() == [message, "    max = -4", "          ^^"]


def test_a_list_that_a_key_wants_is_called_so():
    (problem,) = problems({"backend": "Show", "batch_sizes": 3})
    assert problem.message == "Input should be a list, got 3"


@pytest.mark.parametrize("key", ["next", "map", "or", "each"])
def test_keys_of_a_node_alone_cannot_be_global(key):
    found = problems({"global": {key: "x"}, "n": {"backend": "Show"}})
    assert [p.path for p in found] == [f"global.{key}"]


@pytest.mark.parametrize(
    "source", [{"backend": "Show", "threds": 3}, {"n": {"backend": "Show", "threds": 3}}]
)
def test_a_misspelt_key_of_the_pipeline_gets_the_nearest_wherever_it_stands(source):
    (problem,) = problems(source)
    assert (problem.code, problem.suggestion) == ("unknown_key", "threads")


def test_a_key_of_the_pipeline_in_a_node_is_an_error_that_says_where_it_goes():
    (problem,) = problems({"n": {"backend": "Show", "threads": 3}})
    assert problem.code == "global_key"
    assert "[global]" in problem.hint


@pytest.mark.parametrize("key", ["extends", "import", "define", "global"])
@pytest.mark.parametrize("table", ["n", "global"])
def test_a_key_of_the_top_in_a_table_is_an_error_that_says_where_it_goes(table, key):
    (problem,) = problems({"n": {"backend": "Show"}, table: {"backend": "Show", key: "x"}})
    assert (problem.code, problem.path) == ("top_key", f"{table}.{key}")
    assert problem.suggestion is None
    assert "above all tables" in problem.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max", True),
        ("max", 0),
        ("max", float("nan")),
        ("max", 1.5),
        ("min", "x"),
        ("instance_num", 0),
        ("batching_timeout", -1),
        ("batching_timeout", float("nan")),
        ("batching_timeout", True),
        ("batch_sizes", []),
        ("batch_sizes", iter([])),
        ("batch_sizes", [0]),
        ("batch_sizes", [True]),
        ("queue_size", 0),
        ("queue_full", "drop"),
        ("timeout_ms", 0),
        ("device", []),
        ("device", 3),
        ("pad", "maybe"),
        ("backend", 3),
        ("batch_policy", 3),
        ("init", ["Show"]),
    ],
)
def test_a_wrong_value_of_a_node_key_is_one_problem(key, value):
    found = problems({"backend": "Show", key: value})
    assert [p.path for p in found] == [f"main.{key}"]


def test_all_kinds_of_problems_are_reported_together():
    found = problems(
        {
            "global": {"instance_nuum": 1},
            "define": {"Z": "Show(b=1)"},
            "x": {"backend": "S[Shwo,Show(a=x),Identity[Show]]", "max": 0, "instnce_num": 2},
            "y": {"backend": "Show", "mx": 1},
            "z": {"backend": "Show(", "instanc_num": 1},
            "v": {"backend": "Show(a=x)", "init": "Nope"},
            "w": {"backend": "Show(a=x)", "node_entrypoint": "Nope"},
        }
    )
    assert {(p.code, p.path) for p in found} == {
        ("unknown_key", "global.instance_nuum"),
        ("unknown_option", "define.Z"),
        ("unknown_backend", "x.backend"),
        ("option", "x.backend"),
        ("arity", "x.backend"),
        ("key", "x.max"),
        ("unknown_key", "x.instnce_num"),
        ("unknown_key", "y.mx"),
        ("syntax", "z.backend"),
        ("unknown_key", "z.instanc_num"),
        *(("option", "v.backend"), ("unknown_backend", "v.init")),
        *(("option", "w.backend"), ("unknown_backend", "w.node_entrypoint")),
    }


@pytest.mark.parametrize(
    "source",
    [
        {"backend": "Shwo", "a": 1},
        {"backend": "TorchModule", "model": "x.pt"},
        {"backend": "S[", "a": 1},
        {"backend": "S[Show[", "model": "x"},
        {},
        {"main": {}},
        {"backend": None},
        {"main": {"backnd": "Show"}},
        {"Backend": "Show"},
        {"backend": "Show", "node_entrypoint": "Nope"},
        {"backend": "Show", "init": "Nope"},
        {"backend": "Show", "init": "InstancesRegister[Nope]"},
        {
            "backend": "Show",
            "node_entrypoint": "List[InstancesRegister(x=1)[Show],Register[DI"
            "[Batching,InstanceDispatcher]]]",
        },
        {"x": {"backend": "Nope"}, "y": {"backend": "Forward[node.x]"}},
        {"x": {"backend": "Nope"}, "y": {"backend": "S[Proxy[x.0]]"}},
        {"backend": "IoC[Nope;S[Nope,Show]]"},
        {"backend": "Show", "import": ["no/such.py"]},
        {"backend": "Z", "define": {"Z": "Nope"}},
        {"backend": "Z(a=1)", "define": {"Z": "Nope"}},
        {"backend": "Z", "define": {"Z": "Show["}, "a": 3},
        {"backend": "Show", "batch_policy": "nope", "zeta": 4},
        {"backend": "Show(text=${NO_SUCH_VARIABLE})"},
        {"backend": "Show", "text": "${NO_SUCH_VARIABLE}"},
        {"backend": "Show", "global": 3},
        {"global": {"entrypoint": "Nope"}, "x": {"backend": "Show"}},
    ],
)
def test_one_mistake_is_one_problem(source):
    assert len(problems(source)) == 1


# Placeholders.


def test_environment_variables_stand_in_any_text_value(monkeypatch):
    monkeypatch.setenv("HR_A", "7")
    monkeypatch.setenv("HR_B", "${HR_A} {x}")
    found = options(
        {"backend": "Show", "a": "${HR_A}", "text": "${HR_B}$$", "many": ["${HR_C:-d}"]}
    )
    assert (found.a, found.text, found.many) == (7, "${HR_A} {x}$", ["d"])
    assert options({"backend": "Show(a=${HR_A},text='${HR_A}')"}).text == "7"


def test_a_whole_expression_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("HR_E", "S[Show(a=2)]")
    assert options({"backend": "${HR_E}"}).a == 2


def test_the_name_of_the_node_stands_in_expressions():
    source = {
        "x": {"backend": "Show(text='{node_name}')"},
        "define": {"Z": "Show(text={node_name})"},
    }
    assert options(source, "x").text == "x"
    assert options({**source, "x": {"backend": "Z"}}, "x").text == "x"


def test_each_variable_that_is_not_set_is_reported():
    found = problems({"backend": "Show(text=${HR_X1})", "text": "${HR_X2}", "device": "${HR_X3}"})
    assert {p.path for p in found} == {"main.backend", "main.text", "main.device"}
    assert all(p.code == "placeholder" for p in found)


@pytest.mark.parametrize("text", ["${HR_X:-${HOME}}", "${HR_X-a}", "${HR X}", "a${", "${}"])
def test_a_wrong_placeholder_is_told_both_forms_and_that_a_default_holds_none(text):
    (found,) = problems({"backend": "Show", "text": text})
    assert (found.code, found.path) == ("placeholder", "main.text")
    assert all(part in found.message for part in ("${NAME}", "${NAME:-default}", "in a default"))


def test_a_variable_that_is_not_set_is_no_second_error_of_the_type():
    source = {"a": "${HR_X1}", "instance_num": "${HR_X2}", "threads": "${HR_X3}"}
    found = problems({"backend": "Show", **source})
    assert [p.code for p in found] == ["placeholder"] * 3


def test_links_take_placeholders(monkeypatch):
    monkeypatch.setenv("HR_NEXT", "b,c")
    monkeypatch.setenv("HR_KEY", "many")
    monkeypatch.setenv("HR_TRUE", "true")
    show = {"backend": "Show"}
    source = {
        "global": {"each_errors": "${HR_ERRORS:-none}"},
        "a": {**show, "next": "${HR_NEXT}"},
        "b": {**show, "next": ["${HR_D:-d}", "e"], "each": "${HR_KEY}:data"},
        "c": {**show, "or": "${HR_TRUE}"},
        "d": {**show, "map": {"b": {"result": ["${HR_DATA:-data}", "${HR_KEY}"]}}},
        "e": {**show, "map": "b[result:${HR_DATA:-data}]"},
    }
    links = {name: node["links"] for name, node in headrace.explain(source)["nodes"].items()}
    assert links == {
        "a": {"next": ["b", "c"]},
        "b": {"next": ["d", "e"], "each": "many:data", "each_errors": "none"},
        "c": {"or": True},
        "d": {"map": {"b": {"result": ["data", "many"]}}},
        "e": {"map": {"b": {"result": "data"}}},
    }


def test_a_variable_in_a_link_that_is_not_set_is_the_only_error():
    show = {"backend": "Show"}
    source = {"a": {**show, "next": "${HR_X1}"}, "b": {**show, "or": True, "each": "${HR_X2}"}}
    found = problems(source)
    assert [(p.code, p.path) for p in found] == [
        ("placeholder", "a.next"),
        ("placeholder", "b.each"),
    ]


def test_errors_in_links_show_what_is_written():
    show = {"backend": "Show"}
    (found,) = problems({"a": {**show, "next": "b,cc"}, "b": show, "c": show})
    assert (found.text, found.span, found.suggestion) == ('next = "b,cc"', (7, 13), "c")
    (found,) = problems({"global": {"each_errors": "non"}, "a": show})
    assert (found.path, found.suggestion) == ("global.each_errors", "none")
    (found,) = problems({"a": {**show, "or": 2}})
    assert "    or = 2\n         ^" in str(found.render())


# Extends.


def test_extends_merges_table_by_table_and_key_by_key(tmp_path):
    write(tmp_path / "base.toml", '[n]\nbackend="Show"\na=1\nmany=["x","y"]\ntable={p=1,q=2}\n')
    child = write(tmp_path / "c.toml", 'extends="base.toml"\n[n]\nmany=["z"]\ntable={q=3}\n')
    found = options(child, "n")
    assert (found.a, found.many, found.table) == (1, ["z"], {"p": 1, "q": 3})


def test_of_several_bases_the_later_wins_and_the_child_over_all(tmp_path):
    write(tmp_path / "a.toml", 'backend="Show"\na=1\ntext="a"\n')
    write(tmp_path / "b.toml", 'a=2\ntext="b"\n')
    child = write(tmp_path / "c.toml", 'extends=["a.toml","b.toml"]\ntext="c"\n')
    found = options(child)
    assert (found.a, found.text) == (2, "c")


def test_the_shape_is_read_from_the_whole(tmp_path):
    write(tmp_path / "base.toml", 'a=3\nmany=["x"]\n')
    child = write(tmp_path / "c.toml", 'extends="base.toml"\n[n]\nbackend="Show"\n')
    assert options(child, "n").a == 3


def test_a_dict_may_extend_a_file(tmp_path, monkeypatch):
    write(tmp_path / "base.toml", 'backend="Show"\na=3\n')
    monkeypatch.chdir(tmp_path)
    for base in ("base.toml", Path("base.toml"), (tmp_path / "base.toml",), Folder("base.toml")):
        assert options({"extends": base, "text": "x"}).a == 3


class Folder:
    """A path object that is no `pathlib.Path`, as py.path and upath give them."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def test_a_path_of_another_library_is_a_path(tmp_path):
    file = write(tmp_path / "base.toml", 'backend="Show"\n')
    config = headrace.PipelineConfig.load({"backend": "Show", "model": Folder(str(file))})
    assert options(config).model == file
    assert config.to_dict()["model"] == str(file)
    with pytest.raises(ConfigError, match="expected a text or a list of texts"):
        headrace.PipelineConfig.load({"backend": "Show", "extends": Folder(b"bytes")})


def test_extends_takes_placeholders(tmp_path, monkeypatch):
    write(tmp_path / "base.toml", 'backend="Show"\na=3\n')
    monkeypatch.setenv("HR_BASE", "base")
    assert options(write(tmp_path / "c.toml", 'extends="${HR_BASE}.toml"')).a == 3


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_cycle_of_extends_is_an_error(tmp_path, length):
    for i in range(length):
        write(tmp_path / f"{i}.toml", f'extends = "{(i + 1) % length}.toml"')
    (problem,) = problems(tmp_path / "0.toml")
    assert problem.code == "extends_cycle"


def test_the_same_base_by_two_ways_is_no_cycle(tmp_path):
    write(tmp_path / "base.toml", 'backend="Show"\na=3\n')
    write(tmp_path / "l.toml", 'extends="base.toml"')
    write(tmp_path / "r.toml", 'extends="base.toml"')
    assert options(write(tmp_path / "c.toml", 'extends=["l.toml","r.toml"]')).a == 3


def test_a_long_chain_of_extends_is_an_error_and_no_recursion_error(tmp_path):
    for i in range(400):
        write(tmp_path / f"{i}.toml", f'extends = "{i + 1}.toml"')
    write(tmp_path / "400.toml", 'backend="Show"')
    assert problems(tmp_path / "0.toml")[0].code == "nesting"


def test_all_bases_that_cannot_be_read_are_reported(tmp_path):
    write(tmp_path / "bad.toml", "backend = \n")
    child = write(tmp_path / "c.toml", 'extends=["no.toml","bad.toml","nor.toml"]')
    found = problems(child)
    assert [p.code for p in found] == ["no_file", "toml", "no_file"]
    assert found[0].file == str(child)


def test_a_mistake_in_toml_is_shown_with_its_line(tmp_path):
    path = write(tmp_path / "c.toml", 'a = 1\nbackend = "x\nmax = 3\n')
    (problem,) = problems(path)
    assert (problem.code, problem.file) == ("toml", str(path))
    assert '    backend = "x' in problem.render().splitlines()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1\nb == 2\n", (2, 4)),
        ("a = 1\r\nb == 2\r\n", (2, 4)),
        ("a = 1\n\n  b = [1,,2]\n", (3, 10)),
        ("a = 1\nb = [1,", (2, 8)),
        ("a = 1\nb = [1,\n\n", (4, 1)),
    ],
)
def test_a_mistake_in_toml_is_told_with_line_and_column(text, place, tmp_path):
    (problem,) = problems(write(tmp_path / "c.toml", text))
    line, column = place
    assert f"line {line}, column {column}: " in problem.message
    start, _ = problem.span
    before = problem.text[:start].split("\n")
    assert (len(before), len(before[-1]) + 1) == place


# Import.

CODE = """
import headrace
runs = globals().get("runs", 0) + 1
@headrace.register("FromFile")
class FromFile:
    def forward(self, batch):
        for request in batch:
            request["result"] = __name__
"""


def test_what_a_file_registers_is_seen_by_configurations_that_import_it_only(tmp_path):
    write(tmp_path / "mine.py", CODE)
    with_import = write(tmp_path / "a.toml", 'import=["mine.py"]\nbackend="FromFile"\n')
    without = write(tmp_path / "b.toml", 'backend="FromFile"\n')
    with headrace.pipe(with_import) as pipe:
        first = pipe({"data": 1})["result"]
    with headrace.pipe(with_import) as pipe:
        assert pipe({"data": 1})["result"] == first
    (problem,) = problems(without)
    assert problem.code == "unknown_backend"


def test_two_files_may_register_the_same_name(tmp_path):
    results = set()
    for name in ("a", "b"):
        write(tmp_path / name / "mine.py", CODE)
        path = write(tmp_path / name / "c.toml", 'import=["mine.py"]\nbackend="FromFile"\n')
        with headrace.pipe(path) as pipe:
            results.add(pipe({"data": 1})["result"])
    assert len(results) == 2


def test_a_module_registers_for_the_process(tmp_path, monkeypatch):
    write(tmp_path / "hr_module_a.py", CODE.replace("FromFile", "FromModule"))
    monkeypatch.syspath_prepend(str(tmp_path))
    headrace.PipelineConfig.load({"import": ["hr_module_a"], "backend": "FromModule"})
    headrace.PipelineConfig.load({"backend": "FromModule"})


def test_a_module_that_a_file_imports_registers_for_the_process(tmp_path, monkeypatch):
    write(tmp_path / "hr_module_b.py", CODE.replace("FromFile", "FromInner"))
    write(tmp_path / "outer.py", "import hr_module_b\n" + CODE.replace("FromFile", "FromOuter"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    headrace.PipelineConfig.load({"import": ["outer.py"], "backend": "S[FromInner,FromOuter]"})
    headrace.PipelineConfig.load({"backend": "FromInner"})
    assert problems({"backend": "FromOuter"})[0].code == "unknown_backend"


def test_imports_of_base_and_child_are_added_up_each_relative_to_its_file(tmp_path):
    write(tmp_path / "base" / "one.py", CODE.replace("FromFile", "One"))
    write(tmp_path / "base" / "b.toml", 'import=["one.py"]\n')
    write(tmp_path / "two.py", CODE.replace("FromFile", "Two"))
    child = write(
        tmp_path / "c.toml", 'extends="base/b.toml"\nimport=["two.py"]\nbackend="S[One,Two]"\n'
    )
    headrace.PipelineConfig.load(child)


def test_imports_can_be_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "c.toml", 'import=["mine.py"]\nbackend="FromFile"\nmax=0\n')
    write(tmp_path / "mine.py", "raise AssertionError('it ran')")
    assert {p.code for p in problems(path, allow_import=False)} == {"import_refused", "key"}
    monkeypatch.setenv("HEADRACE_IMPORT", "0")
    assert {p.code for p in problems(path)} == {"import_refused", "key"}


def test_code_that_fails_is_reported_with_the_other_problems(tmp_path):
    write(tmp_path / "mine.py", "1 / 0")
    found = problems(
        write(tmp_path / "c.toml", 'import=["mine.py","no.py"]\nbackend="FromFile"\nmax=0\n')
    )
    assert [p.code for p in found] == ["import", "import", "key"]
    assert "ZeroDivisionError" in found[0].message


def test_a_backend_of_a_file_wins_over_one_of_the_process(tmp_path):
    write(tmp_path / "mine.py", CODE.replace("FromFile", "Show"))
    path = write(tmp_path / "c.toml", 'import=["mine.py"]\nbackend="Show"\n')
    with headrace.pipe(path) as pipe:
        assert "mine" in pipe({"data": 1})["result"]


# Paths.


def test_a_file_path_is_relative_to_the_file_that_wrote_it(tmp_path):
    write(tmp_path / "base" / "m.bin", "x")
    write(tmp_path / "m.bin", "x")
    write(tmp_path / "base" / "b.toml", 'backend="Show(models=[m.bin])"\nmodel="m.bin"\n')
    child = write(tmp_path / "c.toml", 'extends="base/b.toml"\ncache="out/c.bin"\n')
    found = options(child)
    assert found.model == tmp_path / "base" / "m.bin"
    assert found.models == [tmp_path / "base" / "m.bin"]
    assert found.cache == tmp_path / "out" / "c.bin"


def test_a_file_path_must_exist_and_an_output_path_need_not(tmp_path):
    path = write(tmp_path / "c.toml", 'backend="Show"\nmodel="no.bin"\nmodels=["nor.bin","."]\n')
    found = problems(path)
    assert [p.path for p in found] == ["main.model", "main.models", "main.models"]
    assert str(tmp_path / "no.bin") in found[0].message


def test_in_a_dict_a_file_path_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    write(tmp_path / "m.bin", "x")
    monkeypatch.chdir(tmp_path)
    assert options({"backend": "Show", "model": "m.bin"}).model == tmp_path / "m.bin"


def test_a_placeholder_is_replaced_before_the_path_is_read(tmp_path, monkeypatch):
    write(tmp_path / "m.bin", "x")
    monkeypatch.setenv("HR_DIR", str(tmp_path))
    assert options({"backend": "Show", "model": "${HR_DIR}/m.bin"}).model == tmp_path / "m.bin"


# Copies.


def test_texts_of_any_class_are_the_characters_that_they_hold():
    text = {
        value: Enum("Text", {"MEMBER": value}, type=str)["MEMBER"]
        for value in ("line", "Identity", "reject", "backend", "Z")
    }
    keys = {text["backend"]: text["Z"], "queue_full": text["reject"]}
    config = headrace.PipelineConfig.load({text["line"]: keys, "define": {"Z": text["Identity"]}})
    plain = {"line": {"backend": "Z", "queue_full": "reject"}, "define": {"Z": "Identity"}}
    assert repr(config.to_dict()) == repr(plain)
    assert pickle.loads(pickle.dumps(config)) == config
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 1})["result"] == 1


def test_the_callers_dict_is_never_changed():
    source = {"global": {"a": 1}, "n": {"backend": "Show", "many": ["x"], "table": {"p": 1}}}
    before = copy.deepcopy(source)
    config = headrace.PipelineConfig.load(source)
    config.to_dict()["n"]["many"].append("y")
    source["n"]["many"].append("z")
    assert config.to_dict() == before


def test_a_configuration_is_frozen_and_can_be_pickled():
    config = headrace.PipelineConfig.load({"backend": "Show(a=1)", "text": "x"})
    with pytest.raises(AttributeError):
        config.nodes = ()
    with pytest.raises(AttributeError):
        del config._plan
    with pytest.raises(TypeError, match=r"use PipelineConfig\.load"):
        headrace.PipelineConfig({"backend": "Show"})
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again != headrace.PipelineConfig.load({"backend": "Show(a=2)", "text": "x"})


@pytest.mark.parametrize(
    ("keys", "at"),
    [
        ({"min": 3, "max": 2}, "max"),
        ({"max": 4, "batch_sizes": [2, 8]}, "batch_sizes"),
        ({"min": 2, "batch_sizes": [1, 8]}, "batch_sizes"),
    ],
)
def test_keys_that_contradict_each_other_are_told_at_one_of_them(keys, at):
    (found,) = problems({"backend": "Show", **keys})
    assert (found.code, found.path) == ("key", f"main.{at}")


@pytest.mark.parametrize(
    ("item", "said", "hint"),
    [
        ("./code", "is no Python file", None),
        ("gone.py", "no such file", "Paths are relative to the file that holds the configuration."),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_problem_that_says_why(item, said, hint, tmp_path):
    write(tmp_path / "code", "x = 1\n")
    (found,) = problems(write(tmp_path / "c.toml", f'import = ["{item}"]\nbackend = "Show"\n'))
    assert (found.code, found.hint) == ("import", hint)
    assert said in found.message


def test_a_misspelt_file_of_import_or_prefix_is_told_the_nearest_one(tmp_path):
    write(tmp_path / "gone_by.py", "")
    text = 'import = ["gone_bye.py"]\nbackend = "S[Show,(kay=x)Show]"\n'
    first, second = problems(write(tmp_path / "c.toml", text))
    assert f"Did you mean {str(tmp_path / 'gone_by.py')!r}?" in first.hint
    assert (second.code, second.suggestion) == ("prefix", "key=")


@pytest.mark.parametrize(
    "source",
    [
        {"backend": "Show", "threads": 1, "global": {"threads": 2}},
        {"n": {"backend": "Show"}, "pad": True, "global": {"pad": False}},
    ],
)
def test_a_key_at_the_top_and_in_global_is_an_error(source):
    (found,) = problems(source)
    assert found.code == "twice"
    assert "stands at the top level and in [global]" in found.message


def test_an_option_by_place_and_by_name_is_an_error():
    (found,) = problems({"backend": "HasKey(a,key=b)[Show]"})
    assert (found.code, found.message) == ("twice", "'key' stands there twice")


def test_options_that_are_no_options_are_an_error_of_the_class():
    class Odd(headrace.policies.BatchPolicy):
        Options = dict

        def cut(self, queue, instance, now):
            """Cut nothing."""

    headrace.register("OddPolicy", Odd, replace=True)
    (found,) = problems({"backend": "Identity", "batch_policy": "OddPolicy"})
    assert (found.code, found.path) == ("contract", "main.batch_policy")


def test_an_imported_file_that_cannot_be_read_is_a_problem(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    write(tmp_path / "code.py", "x = 1\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    (found,) = problems({"import": str(tmp_path / "code.py"), "backend": "Show"})
    assert found.code == "import"
    assert "cannot be read: [Errno 13] Permission denied" in found.message


def test_to_dict_with_its_folder_means_the_same_anywhere(tmp_path, monkeypatch):
    write(tmp_path / "in $dir" / "m'.bin", "x")
    write(tmp_path / "in $dir" / "mine.py", CODE)
    path = write(
        tmp_path / "in $dir" / "c.toml",
        """
        import = ["mine.py"]
        [define]
        Z = "Show(model=\\"m'.bin\\")"
        [n]
        backend = "S[FromFile,Z,Show(a=1,models=[\\"m'.bin\\"],cache=x.bin)]"
        [m]
        backend = "Show"
        model = "m'.bin"
        models = ["m'.bin"]
        """,
    )
    config = headrace.PipelineConfig.load(path)
    monkeypatch.chdir("/")
    plain = config.to_dict()
    assert plain["import"] == ["mine.py"]
    assert plain["m"] == {"backend": "Show", "model": "m'.bin", "models": ["m'.bin"]}
    again = headrace.PipelineConfig.load(plain, base=tmp_path / "in $dir")
    assert again == config
    assert again.to_dict() == plain
    file = tmp_path / "in $dir" / "m'.bin"
    found = options(again, "m")
    assert (found.model, found.models) == (file, [file])
    found = options(again, "n")
    assert (found.models, found.cache) == ([file], tmp_path / "in $dir" / "x.bin")


def test_what_needs_no_folder_is_written_as_it_was():
    source = {"backend": "Show( a = 1 )", "text": "${HR_NONE:-x}"}
    assert headrace.PipelineConfig.load(source).to_dict() == source


# Depth.


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a folder in use")
def test_a_program_whose_working_directory_is_gone_reads_what_needs_none(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with headrace.pipe({"backend": "Identity"}) as pipe:
        pipe.reload("main", {"max": 2})
        assert pipe({"data": 1})["result"] == 1
    assert problems({"backend": "Identity", "extends": "a.toml"})[0].path == "extends"


def test_deep_values_are_an_error_with_a_place_and_no_recursion_error(tmp_path):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert problems({"backend": "Show", "many": deep})[0].code == "nesting"
    path = write(tmp_path / "c.toml", f'backend="Show"\nmany={"[" * 5000}{"]" * 5000}\n')
    assert problems(path)[0].code == "nesting"
    while deep:
        deep = deep.pop()


def test_a_dict_that_holds_itself_is_an_error():
    source = {"backend": "Show"}
    source["table"] = source
    assert problems(source)[0].code == "nesting"


DEEP = """
import sys, headrace
def at(depth, call):
    return call() if depth == 0 else at(depth - 1, call)
source = {"backend": "BackgroundThread[" * 99 + "S[Identity,Identity]" + "]" * 99}
headrace.PipelineConfig, headrace.pipe, headrace.explain
for left in (40, 80, 200, 400):
    config = at(sys.getrecursionlimit() - left, lambda: headrace.PipelineConfig.load(source))
pipe = at(sys.getrecursionlimit() - 60, lambda: headrace.pipe(source))
at(sys.getrecursionlimit() - 60, lambda: headrace.explain(source))
try:
    at(sys.getrecursionlimit() - 60, lambda: headrace.PipelineConfig.load({"backend": "Idntity"}))
except headrace.errors.ConfigError as error:
    print(error.problems[0].suggestion)
print(pipe({"data": 3})["result"])
pipe.close()
"""


def test_a_configuration_loads_from_a_stack_that_is_almost_used_up():
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Identity\n3\n", "")


def test_a_file_with_a_byte_order_mark_and_windows_lines_is_read(tmp_path):
    path = tmp_path / "c.toml"
    path.write_bytes('\ufeffbackend = "Show"\r\na = 3\r\n'.encode())
    assert options(Path(path)).a == 3


# Files of tables that several files write, and configurations written for any folder.


def read_again(source, monkeypatch, folder, base):
    """Give a configuration as plain data and as pickled, both read in another folder."""
    config = headrace.PipelineConfig.load(source)
    pickled = pickle.dumps(config)
    monkeypatch.chdir(folder)
    again = headrace.PipelineConfig.load(config.to_dict(), base=base)
    assert again == config == pickle.loads(pickled)
    assert again.to_dict() == config.to_dict() == pickle.loads(pickled).to_dict()
    return again


def test_base_is_where_the_relative_paths_of_a_dict_start(tmp_path, monkeypatch):
    write(tmp_path / "in" / "m.bin", "")
    write(tmp_path / "in" / "base.toml", 'backend = "Show"\nmodel = "m.bin"\n')
    monkeypatch.chdir(tmp_path)
    for base in (tmp_path / "in", "in", str(tmp_path / "in")):
        config = headrace.PipelineConfig.load({"backend": "Show", "model": "m.bin"}, base=base)
        assert options(config).model == tmp_path / "in" / "m.bin"
        assert config.to_dict() == {"backend": "Show", "model": "m.bin"}
        other = headrace.PipelineConfig.load({"extends": "base.toml"}, base=base)
        assert other == config
    (found,) = problems({"backend": "Show", "model": "m.bin"})
    assert "no such file" in found.message
    assert ", got" not in found.message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("wrods.txt", "words.txt"),
        ("WORDS.text", "words.txt"),
        ("other/words.txt", None),
        ("id", "id.toml"),
        ("x", None),
    ],
)
def test_the_file_beside_a_missing_one_that_has_a_like_name_is_suggested(tmp_path, written, meant):
    for name in ("words.txt", "id.toml"):
        write(tmp_path / name, 'backend = "Show"\n')
    suggestion = None if meant is None else str(tmp_path / meant)
    sources = [
        {"backend": "Show", "model": written},
        {"backend": "Show", "extends": written},
    ]
    for source in sources:
        with pytest.raises(headrace.errors.ConfigError) as caught:
            headrace.PipelineConfig.load(source, base=tmp_path)
        (found,) = caught.value.problems
        assert found.suggestion == suggestion
    with pytest.raises(headrace.errors.ConfigError) as caught:
        headrace.PipelineConfig.load(str(tmp_path / written))
    assert caught.value.problems[0].suggestion == suggestion


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of any bytes")
def test_a_name_that_no_error_can_show_is_not_suggested(tmp_path):
    (tmp_path / os.fsdecode(b"w\xfford.txt")).touch()
    (found,) = problems({"backend": "Show", "model": str(tmp_path / "word.txt")})
    assert found.message == f"Show: model: no such file: {str(tmp_path / 'word.txt')!r}"
    assert found.suggestion is None


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_to_nothing_is_not_suggested(tmp_path):
    (tmp_path / "word.txt").symlink_to("gone.txt")
    (tmp_path / "words.md").touch()
    (found,) = problems({"backend": "Show", "model": str(tmp_path / "word.txt")})
    assert found.message == f"Show: model: no such file: {str(tmp_path / 'word.txt')!r}"
    assert found.suggestion == str(tmp_path / "words.md")


def test_a_path_that_the_system_refuses_is_a_problem_of_its_option():
    (found,) = problems({"backend": "Show", "model": "x" * 5000})
    assert "it cannot be looked for: File name too long" in found.message
    assert found.path == "main.model"


def test_base_is_for_dicts_only(tmp_path):
    path = write(tmp_path / "c.toml", 'backend = "Show"\n')
    for source in (path, str(path), headrace.PipelineConfig.load(path)):
        with pytest.raises(TypeError, match="base is for a dict"):
            headrace.PipelineConfig.load(source, base=tmp_path)


def test_configurations_that_name_other_files_are_not_equal(tmp_path):
    for name in "ab":
        write(tmp_path / name / "m.bin", "")
    first, second = (
        headrace.PipelineConfig.load({"backend": "Show", "model": "m.bin"}, base=tmp_path / name)
        for name in "ab"
    )
    assert first != second


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


class Deep(headrace.Backend):
    """Gives its files as the result."""

    class Options(headrace.Options):
        files: dict[str, headrace.FilePath | list[headrace.FilePath]] = Field(
            {}, description="Files."
        )
        anything: dict[str, object] = Field({}, description="Anything.")

    init = Show.init
    forward = Show.forward


@pytest.mark.parametrize("header", ["", "[main]\n"])
def test_a_table_that_two_files_write_keeps_the_folder_of_each(
    header, tmp_path, monkeypatch, elsewhere
):
    monkeypatch.setitem(registry.local, "Deep", Deep)
    monkeypatch.setenv("WHICH", "one")
    table = "[main.files]" if header else "[files]"
    other = table.replace("files", "anything")
    for path in ("base/one.bin", "base/two.bin", "child.bin", "one.bin"):
        write(tmp_path / path, "")
    write(
        tmp_path / "base/base.toml",
        f'{header}backend = "Deep"\n{table}\na = "${{WHICH}}.bin"\nb = ["two.bin"]\nc = "no.bin"\n'
        f'{other}\ntext = "one.bin"\n',
    )
    child = f'extends = "base/base.toml"\n{table}\nc = "child.bin"\n{other}\nmore = 1\n'
    file = write(tmp_path / "child.toml", child)
    expected = {
        "a": tmp_path / "base/one.bin",
        "b": [tmp_path / "base/two.bin"],
        "c": tmp_path / "child.bin",
    }
    assert options(file).files == expected
    assert {key: type(value) for key, value in options(file).anything.items()} == {
        "text": str,
        "more": int,
    }
    monkeypatch.chdir(elsewhere)
    kept = pickle.loads(pickle.dumps(headrace.PipelineConfig.load(file)))
    assert options(kept).files == expected


@pytest.mark.parametrize(
    "text",
    [
        '[global]\nbackend = "Show(model=\'{node_name}.bin\')"\n[a]\nnext = "b"\n[b]\n',
        """[define]\nZ = 'S[Show(model={node_name}.bin)]'
        [a]\nbackend = "Z"\nnext = "b"\n[b]\nbackend = "Z"\n""",
        """[define]\nY = "S[Show]"\nZ = 'Y(model="${DIR}{node_name}.bin")'
        [a]\nbackend = "Z"\nnext = "b"\n[b]\nbackend = "Z"\n""",
    ],
)
def test_a_file_named_like_its_node_stays_that_of_each_node(text, tmp_path, monkeypatch, elsewhere):
    monkeypatch.setenv("DIR", "")
    folder = tmp_path / "{node_name} ${X}"
    for name in "ab":
        write(folder / f"{name}.bin", "")
    again = read_again(write(folder / "c.toml", text), monkeypatch, elsewhere, folder)
    shown = headrace.explain(again)["nodes"]
    for name in "ab":
        tree = shown[name]["tree"]
        found = (tree["children"] or [tree])[0]["options"]["model"]["value"]
        assert found == str(folder / f"{name}.bin")


def test_an_expression_that_a_placeholder_brings_in_keeps_its_files(
    tmp_path, monkeypatch, elsewhere
):
    brought = "S[Show(text='${NO} {node_name}',model=m.bin),Other(models=[m.bin,'$.bin'])]"
    monkeypatch.setenv("BROUGHT", brought)
    write(tmp_path / "m.bin", "")
    write(tmp_path / "$.bin", "")
    file = write(tmp_path / "c.toml", 'backend = "${BROUGHT}"\n')
    again = read_again(file, monkeypatch, elsewhere, tmp_path)
    first, second = headrace.explain(again)["nodes"]["main"]["tree"]["children"]
    assert first["options"]["text"]["value"] == "${NO} {node_name}"
    assert first["options"]["model"]["value"] == str(tmp_path / "m.bin")
    assert second["options"]["models"]["value"] == [str(tmp_path / n) for n in ("m.bin", "$.bin")]


def test_a_folder_is_no_configuration(tmp_path):
    (found,) = problems(tmp_path)
    assert found.message == f"{str(tmp_path)!r} is a folder, not a TOML file"


def test_what_is_no_toml_is_pointed_at_where_the_parser_stopped(tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text("first = 1\nsecond = = 2\n")
    (found,) = problems(file)
    start, end = found.span
    assert found.text[:start] == "first = 1\nsecond = "
    assert found.text[start:end] == "="


def test_a_path_object_is_written_as_text(tmp_path, monkeypatch, elsewhere):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "m.bin", "")
    source = {"backend": "Show", "model": Path("m.bin"), "cache": Path("made")}
    again = read_again(source, monkeypatch, elsewhere, tmp_path)
    assert again.to_dict() == {"backend": "Show", "model": "m.bin", "cache": "made"}
    assert (options(again).model, options(again).cache) == (tmp_path / "m.bin", tmp_path / "made")


def test_files_that_extend_the_same_are_read_once_each(tmp_path):
    levels = 40  # twice as many ways down with each
    for level in range(levels):
        below = f"{level + 1}.toml"
        write(tmp_path / f"{level}.toml", f'extends = ["{below}", "{below}"]\na = {level}\n')
    write(tmp_path / f"{levels}.toml", 'backend = "Show"\ntext = "x"\n')
    found = options(tmp_path / "0.toml")
    assert (found.a, found.text) == (0, "x")


def test_an_import_that_ends_the_program_is_an_error_with_its_line(tmp_path):
    write(tmp_path / "ends.py", "import sys\nsys.exit(3)\n")
    write(tmp_path / "fails.py", "\n\n\ndef f():\n    raise ValueError('no')\nf()\n")
    write(tmp_path / "skips.py", "class Skipped(BaseException): ...\nraise Skipped('no GPU')\n")
    files = [str(tmp_path / f"{name}.py") for name in ("ends", "fails", "skips")]
    first, second, third = problems({"backend": "Show", "import": files})
    assert first.message.endswith("failed in line 2: SystemExit: 3")
    assert second.message.endswith("failed in line 5: ValueError: no")
    assert third.message.endswith("failed in line 2: Skipped: no GPU")


def test_a_module_beside_an_imported_file_is_not_found_without_its_folder(tmp_path):
    write(tmp_path / "steps.py", "import beside_it.inner\n")
    (missing,) = problems({"backend": "Show", "import": [str(tmp_path / "steps.py")]})
    write(tmp_path / "beside_it.py", "")
    (found,) = problems({"backend": "Show", "import": [str(tmp_path / "steps.py")]})
    assert found.message == missing.message
    assert missing.hint is None
    assert f"PYTHONPATH={tmp_path}." in found.hint


def test_one_name_from_two_files_of_one_name_cannot_be_told_apart(tmp_path):
    code = "import headrace\n\n@headrace.register('Same')\nclass Same:\n    def forward(self, b): ...\n"
    files = [str(write(tmp_path / folder / "own.py", code)) for folder in "ab"]
    (found,) = problems({"backend": "Same", "import": files})
    assert found.code == "ambiguous"
    assert found.hint == "Give one of them another name, or import only one."


def test_the_nearest_choice_is_suggested():
    class Choosy(headrace.Backend):
        class Options(headrace.Options):
            mode: Literal["fast", "exact"] | None = Field(None, description="How.")
            number: Literal[1, 2] = Field(1, description="Which.")

        forward = Show.forward

    registry.local["Choosy"] = Choosy
    found = problems({"backend": "Choosy", "mode": "fats", "queue_full": "rejct"})
    assert [(p.code, p.suggestion) for p in found] == [("key", "reject"), ("option", "fast")]
    assert [p.suggestion for p in problems({"backend": "Choosy", "mode": "x", "number": 3})] == [
        None,
        None,
    ]


def test_what_is_probably_meant_is_told():
    (found,) = problems({"bakend": "Show"})
    assert (found.text, found.span) == ('bakend = "Show"', (0, 6))
    assert found.suggestion == "backend"
    (found,) = problems({"a": {"backend": "Show"}, "b": {"backend": "Forward[a]"}})
    assert found.suggestion == "node.a"
    found = problems({"backend": "Identity(Show)"})
    assert found[0].hint == "Options stand in ( ), backends in [ ]."


def test_a_list_of_tables_is_no_node(tmp_path):
    (found,) = problems(write(tmp_path / "c.toml", '[[n]]\nbackend = "Show"\n'))
    assert found.hint == "Write [n], with one pair of brackets."


def test_a_backend_for_all_nodes_and_no_node(tmp_path):
    (found,) = problems({"global": {"backend": "Show"}})
    assert (found.code, found.path, found.suggestion) == ("no_node", "global.backend", None)
    assert "default of nodes" in found.hint


def test_an_empty_table_is_reported_with_its_file(tmp_path):
    file = write(tmp_path / "c.toml", "[n]\n")
    (found,) = problems(file)
    assert (found.file, found.path) == (str(file), "n")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("Show::a = 3", 'A key with a scope stands in quotes: "Show::a" = ...'),
        ("cv:Show::a=3", 'A key with a scope stands in quotes: "cv:Show::a" = ...'),
        ("text = rgb", 'A text stands in quotes: "..."; true and false are lower case.'),
        ("text 3", None),
    ],
)
def test_slips_in_toml_are_told(line, hint, tmp_path):
    (found,) = problems(write(tmp_path / "c.toml", f'backend = "Show"\n{line}\n'))
    assert (found.code, found.hint) == ("toml", hint)


LINES = """\
# comment = 1
extends = "base.toml"
text = '''
"Nope::x" = 1
'''
"Nope::x" = 1
[one]
  backend = "S[Show,Shoe]"
next = 'two,three'

[ "two" ]  # the second
backend.x = 1
backend = "Show"
"""


def test_what_is_wrong_has_the_line_and_column_of_its_file(tmp_path):
    write(tmp_path / "base.toml", '[global]\nmax = true\n[define]\nZ = "A[B"\n')
    file = write(tmp_path / "c.toml", LINES.replace("backend.x = 1\n", ""))
    found = {p.path: (p.file.rpartition("/")[2], p.line, p.column) for p in problems(file)}
    assert found == {
        "global.max": ("base.toml", 2, 7),
        "define.Z": ("base.toml", 4, 7),
        "global.Nope::x": ("c.toml", 6, 1),
        "one.backend": ("c.toml", 8, 21),
        "one.next": ("c.toml", 9, 9),
    }


def test_what_cannot_be_imported_has_the_line_and_column_of_its_own_file(tmp_path):
    write(tmp_path / "base.toml", 'backend = "Identity"\nimport = ["no.py"]\n')
    write(tmp_path / "right.py", "")
    file = write(tmp_path / "c.toml", 'import = [\n"right.py", "not.py"]\nextends = "base.toml"\n')
    found = [(p.file.rpartition("/")[2], p.line, p.column, p.text) for p in problems(file)]
    of_base, of_child = ("base.toml", 2, 11), ("c.toml", 2, 14)
    assert found == [(*of_base, 'import = ["no.py"]'), (*of_child, 'import = ["not.py"]')]
    refused = problems(file, allow_import=False)
    assert [(p.code, p.path, p.span) for p in refused] == [("import_refused", "import", (9, 40))]


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        ('backend="""S[Show,\n  Shoe]"""', (2, 3)),
        ('backend = """\nS[\n  Show,\n\tShoe\n]"""  # Shoe\n[b]\nbackend=\'Show\'', (4, 2)),
        ('backend = "S[Show,\\n Shoe]"', (1, 22)),
        ('backend = "S[Shoe,\\n Shoe]"', (1, 11)),
        ('backend="Show"\nmax="x"', (2, 6)),
        ("backend='Show'\nmax  =  'x'  # x", (2, 9)),
        ("backend='Show'\nbatch_sizes=[1,true]", (2, 13)),
        ("backend='Show'\n  max='x'", (2, 8)),
        ("backend='Show'\n\"m x\" = 1", (2, 1)),
    ],
)
def test_the_place_is_found_however_the_value_is_written(lines, at, tmp_path):
    found = problems(write(tmp_path / "c.toml", f"[a]\n{lines}\n"))[0]
    assert (found.line - 1, found.column) == at


def test_a_key_of_an_inline_table_is_not_found_at_the_end_of_another_one(tmp_path):
    file = write(tmp_path / "c.toml", 'a = {backend = "Show", queue_size = 5, size = 5}\n')
    (found,) = problems(file)
    assert (found.path, found.line, found.column) == ("a.size", 1, 40)


def test_a_column_is_counted_from_the_only_empty_line_before_it(tmp_path):
    (found,) = problems(write(tmp_path / "c.toml", '\nmax = "x"\nbackend = "Show"\n'))
    assert (found.line, found.column) == (2, 7)


def test_the_line_is_that_of_the_table_where_a_key_is_missing(tmp_path):
    file = write(tmp_path / "c.toml", "max = 1\n\n[node]\nmax = 2\n")
    (found,) = problems(file)
    assert (found.path, found.line, found.column) == ("node", 3, 1)
    assert str(found.render()).startswith(f"{file}:3:1: node: ")


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        (
            "[c]\nbackend='Show'\n[a]\nbackend='Show'\nnext='c'\n[b]\nbackend='Show'\nnext='c'",
            ("c", 1),
        ),
        ("entrypoint='Identity'\n[a]\nbackend='Show'\n", ("a", 2)),
    ],
)
def test_the_line_is_that_of_the_table_where_the_graph_is_wrong_at_a_node(lines, at, tmp_path):
    file = write(tmp_path / "c.toml", lines)
    (found,) = problems(file)
    assert (found.code, found.file, found.path, found.line) == ("graph", str(file), *at)


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        ("[b]\nbackend='Show'\nmap.a = {result = 'date'}", ("b.map", 5)),
        ("[b]\nbackend='Show'\n[b.map]\na = {result = 'date'}", ("b.map", 5)),
        ("[b]\nbackend='Show'\n[b.map.q]\nresult = 'data'", ("b.map", 5)),
        ("[b]\nbackend='Show'\nmap.a.result = 'date'", ("b.map", 5)),
        ("b.map.a.result = 'date'\nb.backend='Show'", ("b.map", 3)),
        ("[b.map]\na = {result = 'date'}\n[b]\nbackend='Show'", ("b.map", 3)),
        ("[b]\nbackend='Show'\nmap.a.result = 'data'\nShow.a = 2", ("b.Show", 6)),
        ("b.map.a.result = 'data'\nb.max = 2", ("b", 3)),
    ],
)
def test_a_key_that_is_written_with_dots_stands_in_its_own_line(lines, at, tmp_path):
    head = "a = {backend = 'Show', next = 'b'}\n\n"
    (found,) = problems(write(tmp_path / "c.toml", f"{head}{lines}\n"))
    assert (found.path, found.line) == at


def test_a_dict_has_no_lines():
    (found,) = problems({"backend": "Shoe"})
    assert (found.file, found.line, found.column) == (None, None, None)


def test_a_pipeline_of_a_configuration_says_what_makes_it():
    with pytest.raises(TypeError, match=r"headrace\.pipe"):
        headrace.Pipeline({"backend": "Identity"})
    with pytest.raises(TypeError, match=r"headrace\.pipe"):
        headrace.Pipeline()


def test_the_name_of_a_table_that_is_none_for_a_node_is_marked_whole():
    (found,) = problems({"a": {"backend": "Show"}, "1st": {"backend": "Show"}})
    assert found.code == "node_name"
    assert found.text[slice(*found.span)] == "1st"


@pytest.mark.parametrize(
    ("source", "marked"),
    [
        ({"main": {"backend": "Show", "instance_num": "x"}}, '"x"'),
        ({"main": {"backend": "Show", "min": 3, "max": 2}}, "2"),
        ({"main": {"backend": "Show", "min": 9, "batch_sizes": [3]}}, "[3]"),
        ({"main": {"backend": "Show", "next": "none"}}, '"none"'),
        ({"main": {"backend": "Show", "device": Path("a/b")}}, '"a/b"'),
        ({"main": {"backend": "Show", "device": 2j}}, '"2j"'),
        ({"main": {"backend": "Show", "init": 5}}, "5"),
        ({"main": {"backend": "Show", "instances": 1}}, "instances"),
        ({"main": {"backend": "Show", "batch_policy": "Nope(x=1)"}}, "Nope"),
        ({"main": {"backend": "Show", "a": "x"}}, '"x"'),
        ({"main": {"backend": "Show", "Show::a": "x"}}, '"x"'),
        ({"main": {"backend": "Show"}, "global": {"a": "x"}}, '"x"'),
        ({"main": {"backend": "Show(a=x)"}}, "a=x"),
        ({"main": {"backend": "Show"}, "define": {"Z": 7}}, "7"),
    ],
)
def test_a_problem_marks_the_value_that_is_wrong_or_the_key_where_it_is_the_key(source, marked):
    (found,) = problems(source)
    assert found.text[slice(*found.span)] == marked


def test_each_of_many_nodes_may_name_the_next_one_of_the_file():
    nodes = {f"n{i}": {"backend": f"S[Identity,Forward[node.n{i + 1}]]"} for i in range(60)}
    headrace.PipelineConfig.load({**nodes, "n60": {"backend": "Identity"}})


def test_a_recursion_limit_that_leaves_no_room_is_told_as_such():
    def deep():
        raise RecursionError

    with pytest.raises(ConfigError) as caught:
        with_room(deep)
    (found,) = caught.value.problems
    assert (found.code, str(sys.getrecursionlimit()) in found.hint) == ("nesting", True)
