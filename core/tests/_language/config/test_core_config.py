"""Configurations: shapes, who wins, placeholders, ``extends``, ``import``, paths, copies."""

from __future__ import annotations

import copy
import math
import os
import pickle
import sys
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from loading import load, problem, problems, python, write
from pydantic import Field

import headrace
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


SHOW = {"backend": "Show"}


@pytest.fixture(autouse=True)
def backends(nothing_registered):
    headrace.register(Show)
    headrace.register("Other", type("Other", (Show,), {}))


def options(source, node="main", **request):
    with headrace.pipe(source) as pipe:
        return pipe({"data": 1, "node_name": node, **request})["result"]


# Shapes.


def test_each_table_is_a_node_and_top_level_scalars_are_global():
    source = {"a": 5, "one": SHOW, "two-2": {**SHOW, "a": 6}, "other": {"backend": "Identity"}}
    assert load(source).nodes == ("one", "two-2", "other")
    assert options(source, "one").a == 5
    assert options(source, "two-2").a == 6


def test_a_table_without_backend_beside_a_backend_is_an_option():
    assert options({"backend": "Show", "table": {"x": 1}}).table == {"x": 1}
    assert options({"backend": "Show", "table": {}}).table == {}


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


def test_a_missing_file_is_not_taken_for_a_file_alike_in_its_suffix_alone(tmp_path):
    (tmp_path / "line.toml").write_text('backend = "Show"\n')
    (problem,) = problems(tmp_path / "base.toml")
    assert (problem.suggestion, problem.hint) == (None, None)
    (problem,) = problems(tmp_path / "lines.toml")
    assert problem.suggestion == str(tmp_path / "line.toml")


def test_a_folder_is_no_configuration(tmp_path):
    assert problem(tmp_path).message == f"{str(tmp_path)!r} is a folder, not a TOML file"


@pytest.mark.parametrize("source", [None, 3, ["Show"], b"Show"])
def test_anything_but_a_dict_a_path_and_a_configuration_is_a_type_error(source):
    with pytest.raises(TypeError):
        load(source)


def test_a_configuration_is_loaded_as_itself():
    config = load({"backend": "Show"})
    assert load(config) is config


# Who wins.


@pytest.mark.parametrize(
    ("inside", "scope", "value"),
    [("Show{}", "Show", lambda n: n), ("S[Reflect[a,Show]]", "Reflect", lambda n: f"Show(a={n})")],
    ids=["option", "reflected parameter"],
)
def test_one_order_holds_wherever_a_value_may_be_written(inside, scope, value):
    """All subsets of the places, the nearest last, against the greatest of the subset."""
    places = [("global", "a"), ("global", f"{scope}::a"), ("main", "a"), ("main", f"{scope}::a")]
    for written in range(2 ** (len(places) + ("{}" in inside))):
        stands = [n for n in range(1, 6) if written & 1 << n - 1]
        inline = f"(a='{value(5)}')" if 5 in stands else ""
        source = {"main": {"backend": inside.format(inline)}, "global": {}}
        for n, (table, key) in enumerate(places, 1):
            if n in stands:
                source[table][key] = value(n)
        assert options(source).a == max(stands, default=0), stands


def test_a_global_key_is_the_default_of_all_nodes():
    source = {"global": {"max": 7, "instance_num": 2}, "x": {"backend": "Show"}, "y": {}}
    source["y"] = {"backend": "Show", "max": 3}
    plan = load(source)._plan
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
    load({**source, "y": {"backend": "Show", "min": 2}})
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
    first, same, other = (load({**SHOW, "max": n}) for n in (2, 2, 3))
    assert {first: 1, same: 2} == {first: 2}
    assert len({first, same, other}) == 2


LINKS = ["next", "map", "or", "each"]


def test_a_none_is_as_if_the_key_was_not_there():
    assert options({"backend": "Show", "max": None, "init": None}).max is None
    plain = headrace.explain(SHOW)["nodes"]
    keys = {*plain["main"]["keys"], *LINKS} - {"backend"}
    for given in (dict.fromkeys(keys), {"each_errors": None}):
        assert headrace.explain({**SHOW, **given})["nodes"] == plain
    shared = {"instance_num": 2, "max": 4}
    tree = headrace.explain({"global": shared, "n": {**SHOW, "instance_num": None}})["nodes"]["n"]
    assert (tree["instance_num"], tree["range"]) == (1, [1, 4])


# Problems with keys.


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"backend": "Show", "qqqq": 2}, "There are: a, cache, many, model"),
        ({"backend": "Identity", "main": {"max": 2}}, "A table is a node only at the top level"),
        ({"backend": "Qqqq"}, "`headrace plugins list` shows"),
        ({"backend": "Identity", "dispatch_policy": "greedy"}, "There are: best_fit."),
        ({"backend": "Call"}, "function = ... in the node"),
        ({"backend": "Call[math:sqrt]"}, "stands in ( ): Call(math:sqrt)"),
        ({"backend": "Identity -> Identity"}, "S[A,B] runs A, then B"),
        ({"backend": "IoC[Show;Show(1)]"}, "Write them where it is built."),
    ],
)
def test_where_no_name_is_near_the_hint_says_what_to_do(source, hint):
    assert any(hint in (found.hint or "") for found in problems(source))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({**SHOW, "x": SHOW}, {"code": "two_shapes", "path": "x.backend"}),
        ({"main": {**SHOW, 3: 1}}, {"code": "key", "path": "main"}),
        ({**SHOW, "many": [1] * 9}, {"message": "many[0]: Input should be a valid string, got 1"}),
        ({**SHOW, "many": [1] * 9}, {"hint": "Quotes make it a text."}),
        ({**SHOW, "txet": "grün"}, {"path": "main.txet", "suggestion": "text"}),
        ({**SHOW, "txet": "grün"}, {"text": 'txet = "grün"', "span": (0, 4)}),
        ({**SHOW, "Show::instance_num": 2}, {"code": "unknown_key", "suggestion": "instance_num"}),
        ({"main": SHOW, "global": {"Show::instance_num": 2}}, {"suggestion": "instance_num"}),
        ({"aa": 1, "x": SHOW}, {"code": "unknown_key", "path": "global.aa"}),
        ({**SHOW, "batch_sizes": 3}, {"message": "Input should be a list, got 3"}),
        ({**SHOW, "threds": 3}, {"code": "unknown_key", "suggestion": "threads"}),
        ({"n": {**SHOW, "threds": 3}}, {"code": "unknown_key", "suggestion": "threads"}),
        ({"n": {**SHOW, "threads": 3}}, {"code": "global_key", "hint": "[global]"}),
        ({**SHOW, "batching_timeout": math.nan}, {"message": "NaN is no value, got NaN"}),
        ({**SHOW, "timeout_ms": math.nan}, {"message": "NaN is no value, got NaN"}),
        ({**SHOW, "max": math.nan}, {"message": "NaN is no value, got NaN"}),
        ({**SHOW, "threads": 1, "global": {"threads": 2}}, {"code": "twice"}),
        (
            {"n": SHOW, "pad": True, "global": {"pad": False}},
            {"code": "twice", "message": "stands at the top level and in [global]"},
        ),
        ({"backend": "Call(a:b,function=a:c)"}, {"message": "'function' stands there twice"}),
        ({**SHOW, "min": 3, "max": 2}, {"code": "key", "path": "main.max"}),
        ({**SHOW, "max": 4, "batch_sizes": [2, 8]}, {"code": "key", "path": "main.batch_sizes"}),
        ({**SHOW, "min": 2, "batch_sizes": [1, 8]}, {"code": "key", "path": "main.batch_sizes"}),
        ({"global": SHOW}, {"path": "global.backend", "hint": "a table per node"}),
        ({"bakend": "Show"}, {"text": 'bakend = "Show"', "span": (0, 6), "suggestion": "backend"}),
        ({"a": SHOW, "b": {"backend": "Forward[a]"}}, {"suggestion": "node.a"}),
        ({"backend": "Shoe"}, {"file": None, "line": None, "column": None}),  # a dict has no lines
        ({**SHOW, "model": "x" * 5000}, {"path": "main.model", "message": "File name too long"}),
    ],
)
def test_what_is_wrong_in_a_dict_is_told(source, told):
    (found,) = problems(source)
    for key, value in told.items():
        shown = getattr(found, key)
        assert value in shown if key in ("message", "hint") else shown == value


def test_a_key_is_shown_with_its_value_and_a_caret():
    (problem,) = problems({"backend": "Show", "max": -4})
    message = "main.max: Input should be greater than or equal to 1, got -4"
    assert problem.render().splitlines() == [message, "    max = -4", "          ^^"]


@pytest.mark.parametrize("key", LINKS)
def test_keys_of_a_node_alone_cannot_be_global(key):
    found = problems({"global": {key: "x"}, "n": {"backend": "Show"}})
    assert [p.path for p in found] == [f"global.{key}"]


@pytest.mark.parametrize("key", ["extends", "import", "global"])
@pytest.mark.parametrize("table", ["n", "global"])
def test_a_key_of_the_top_in_a_table_is_an_error_that_says_where_it_goes(table, key):
    (problem,) = problems({"n": {"backend": "Show"}, table: {"backend": "Show", key: "x"}})
    assert (problem.code, problem.path) == ("top_key", f"{table}.{key}")
    assert problem.suggestion is None
    assert "above all tables" in problem.hint


WRONG_VALUES = {
    "max": (True, 0, math.nan, 1.5),
    "min": ("x",),
    "instance_num": (0,),
    "batching_timeout": (-1, math.nan, True),
    "batch_sizes": ([], iter([]), [0], [True]),
    "queue_size": (0,),
    "queue_full": ("drop",),
    "timeout_ms": (0,),
    "device": ([], 3),
    "pad": ("maybe",),
    **dict.fromkeys(("backend", "batch_policy"), (3,)),
    "init": (["Show"],),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG_VALUES.items() for value in values]
)
def test_a_wrong_value_of_a_node_key_is_one_problem(key, value):
    found = problems({"backend": "Show", key: value})
    assert [p.path for p in found] == [f"main.{key}"]


def test_all_kinds_of_problems_are_reported_together():
    found = problems(
        {
            "global": {"instance_nuum": 1},
            "x": {"backend": "S[Shwo,Show(a=x),Identity[Show]]", "max": 0, "instnce_num": 2},
            "y": {"backend": "Show(b=1)", "mx": 1},
            "z": {"backend": "Show(", "instanc_num": 1},
            "v": {"backend": "Show(a=x)", "init": "Nope"},
        }
    )
    assert {(p.code, p.path) for p in found} == {
        ("unknown_key", "global.instance_nuum"),
        ("unknown_backend", "x.backend"),
        ("option", "x.backend"),
        ("arity", "x.backend"),
        ("key", "x.max"),
        ("unknown_key", "x.instnce_num"),
        ("unknown_option", "y.backend"),
        ("unknown_key", "y.mx"),
        ("syntax", "z.backend"),
        ("unknown_key", "z.instanc_num"),
        *(("option", "v.backend"), ("unknown_backend", "v.init")),
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
        {"backend": "Show", "init": "Nope"},
        {"x": {"backend": "Nope"}, "y": {"backend": "Forward[node.x]"}},
        {"x": {"backend": "Nope"}, "y": {"backend": "S[Forward[node.x]]"}},
        {"backend": "IoC[Nope;S[Nope,Show]]"},
        {"backend": "Show", "import": ["no/such.py"]},
        {"backend": "Show", "batch_policy": "nope", "zeta": 4},
        {"backend": "Show(text=${NO_SUCH_VARIABLE})"},
        {"backend": "Show", "text": "${NO_SUCH_VARIABLE}"},
        {"backend": "Show", "global": 3},
    ],
)
def test_one_mistake_is_one_problem(source):
    assert len(problems(source)) == 1


# Placeholders.


def test_environment_variables_stand_in_any_text_value(monkeypatch):
    monkeypatch.setenv("HR_A", "7")
    monkeypatch.setenv("HR_B", "${HR_A} {x}")
    found = options({**SHOW, "a": "${HR_A}", "text": "${HR_B}$$", "many": ["${HR_C:-d}"]})
    assert (found.a, found.text, found.many) == (7, "${HR_A} {x}$$", ["d"])
    assert options({"backend": "Show(a=${HR_A},text='${HR_A}')"}).text == "7"


@pytest.mark.parametrize(
    "nodes",
    [
        {"n": {"backend": "Show(text=${HR_1})", "text": "${HR_2}", "device": "${HR_3}"}},
        {"n": {**SHOW, "a": "${HR_1}", "instance_num": "${HR_2}"}, "global": {"max": "${HR_3}"}},
        {"n": {**SHOW, "next": "${HR_1}"}, "m": {**SHOW, "or": True, "each": "${HR_2}"}},
    ],
    ids=["values", "of another type", "links"],
)
def test_each_variable_that_is_not_set_is_reported_and_nothing_else(nodes):
    unset = [
        f"{n}.{key}" for n in nodes for key, value in nodes[n].items() if "${HR_" in str(value)
    ]
    found = [(p.code, p.path) for p in problems(nodes)]
    assert sorted(found) == sorted(("placeholder", path) for path in unset)


@pytest.mark.parametrize("text", ["${HR_X:-${HOME}}", "${HR_X-a}", "${HR X}", "a${", "${}"])
def test_a_wrong_placeholder_is_told_both_forms_and_that_a_default_holds_none(text):
    (found,) = problems({"backend": "Show", "text": text})
    assert (found.code, found.path) == ("placeholder", "main.text")
    assert all(part in found.message for part in ("${NAME}", "${NAME:-default}", "in a default"))


def test_links_take_placeholders(monkeypatch):
    monkeypatch.setenv("HR_NEXT", "b,c")
    monkeypatch.setenv("HR_KEY", "many")
    monkeypatch.setenv("HR_TRUE", "true")
    source = {
        "global": {"each_errors": "${HR_ERRORS:-none}"},
        "a": {**SHOW, "next": "${HR_NEXT}"},
        "b": {**SHOW, "next": ["${HR_D:-d}", "e"], "each": "${HR_KEY}:data"},
        "c": {**SHOW, "or": "${HR_TRUE}"},
        "d": {**SHOW, "map": {"b": {"result": ["${HR_DATA:-data}", "${HR_KEY}"]}}},
        "e": {**SHOW, "map": "b[result:${HR_DATA:-data}]"},
    }
    links = {name: node["links"] for name, node in headrace.explain(source)["nodes"].items()}
    assert links == {
        "a": {"next": ["b", "c"]},
        "b": {"next": ["d", "e"], "each": "many:data", "each_errors": "none"},
        "c": {"or": True},
        "d": {"map": {"b": {"result": ["data", "many"]}}},
        "e": {"map": {"b": {"result": "data"}}},
    }


def test_errors_in_links_show_what_is_written():
    (found,) = problems({"a": {**SHOW, "next": "b,cc"}, "b": SHOW, "c": SHOW})
    assert (found.text, found.span, found.suggestion) == ('next = "b,cc"', (7, 13), "c")
    (found,) = problems({"global": {"each_errors": "non"}, "a": SHOW})
    assert (found.path, found.suggestion) == ("global.each_errors", "none")
    (found,) = problems({"a": {**SHOW, "or": 2}})
    assert "    or = 2\n         ^" in str(found.render())


# Extends.


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (  # table by table and key by key
            {
                "base": '[main]\nbackend="Show"\na=1\nmany=["x","y"]\ntable={p=1,q=2}\n',
                "c": 'extends="base.toml"\n[main]\nmany=["z"]\ntable={q=3}\n',
            },
            {"a": 1, "many": ["z"], "table": {"p": 1, "q": 3}},
        ),
        (  # of several bases the later wins, and the child over all
            {
                "a": 'backend="Show"\na=1\ntext="a"\n',
                "b": 'a=2\ntext="b"\n',
                "c": 'extends=["a.toml","b.toml"]\ntext="c"\n',
            },
            {"a": 2, "text": "c"},
        ),
        (  # the shape is read from the whole
            {"a": "a=3", "c": 'extends="a.toml"\n[main]\nbackend="Show"\n'},
            {"a": 3},
        ),
        ({"base": 'backend="Show"\na=3\n', "c": 'extends="${HR_BASE}.toml"'}, {"a": 3}),
    ],
)
def test_a_file_stands_over_those_that_it_extends(files, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("HR_BASE", "base")
    for name, text in files.items():
        write(tmp_path / f"{name}.toml", text)
    found = options(tmp_path / "c.toml")
    assert {key: getattr(found, key) for key in expected} == expected


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
    config = load({"backend": "Show", "model": Folder(str(file))})
    assert options(config).model == file
    assert config.to_dict()["model"] == str(file)
    with pytest.raises(ConfigError, match="expected a text or a list of texts"):
        load({"backend": "Show", "extends": Folder(b"bytes")})


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_cycle_of_extends_is_an_error(tmp_path, length):
    for i in range(length):
        write(tmp_path / f"{i}.toml", f'extends = "{(i + 1) % length}.toml"')
    (problem,) = problems(tmp_path / "0.toml")
    assert problem.code == "extends_cycle"


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


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a = 1\nb == 2\n", (2, 4)),
        ("a = 1\nb = = 2\n", (2, 5)),
        ("a = [\n", (2, 1)),
        ("a = 1\r\nb == 2\r\n", (2, 4)),
        ("a = 1\n\n  b = [1,,2]\n", (3, 10)),
        ("a = 1\nb = [1,", (2, 8)),
        ("a = 1\nb = [1,\n\n", (4, 1)),
    ],
)
def test_a_mistake_in_toml_is_told_with_line_and_column(text, place, tmp_path):
    path = write(tmp_path / "c.toml", text)
    (problem,) = problems(path)
    assert (problem.code, problem.file) == ("toml", str(path))
    assert (problem.line, problem.column) == place
    assert "line {}, column {}: ".format(*place) in problem.message
    assert f"{path}:{place[0]}:{place[1]}: this is no TOML" in problem.render()
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


def test_a_module_registers_for_the_process_also_where_a_file_imports_it(tmp_path, monkeypatch):
    write(tmp_path / "hr_module_a.py", CODE.replace("FromFile", "FromModule"))
    write(tmp_path / "hr_module_b.py", CODE.replace("FromFile", "FromInner"))
    code = "import hr_module_b\n" + CODE.replace("FromFile", "FromOuter")
    write(tmp_path / "elsewhere" / "outer.py", code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    load({"import": ["hr_module_a"], "backend": "FromModule"})
    load({"import": ["elsewhere/outer.py"], "backend": "S[FromInner,FromOuter]"})
    load({"backend": "S[FromModule,FromInner]"})
    assert problems({"backend": "FromOuter"})[0].code == "unknown_backend"


def test_imports_of_base_and_child_are_added_up_each_relative_to_its_file(tmp_path):
    write(tmp_path / "base" / "one.py", CODE.replace("FromFile", "One"))
    write(tmp_path / "base" / "b.toml", 'import=["one.py"]\n')
    write(tmp_path / "two.py", CODE.replace("FromFile", "Two"))
    text = 'extends="base/b.toml"\nimport=["two.py"]\nbackend="S[One,Two]"\n'
    load(write(tmp_path / "c.toml", text))


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


# Copies.


def test_texts_of_any_class_are_the_characters_that_they_hold():
    text = {
        value: Enum("Text", {"MEMBER": value}, type=str)["MEMBER"]
        for value in ("line", "Identity", "reject", "backend")
    }
    keys = {text["backend"]: text["Identity"], "queue_full": text["reject"]}
    config = load({text["line"]: keys})
    assert repr(config.to_dict()) == repr({"line": {"backend": "Identity", "queue_full": "reject"}})
    assert pickle.loads(pickle.dumps(config)) == config
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 1})["result"] == 1


def test_the_callers_dict_is_never_changed():
    source = {"global": {"a": 1}, "n": {"backend": "Show", "many": ["x"], "table": {"p": 1}}}
    before = copy.deepcopy(source)
    config = load(source)
    config.to_dict()["n"]["many"].append("y")
    source["n"]["many"].append("z")
    assert config.to_dict() == before


def test_a_configuration_is_frozen_and_can_be_pickled():
    config = load({"backend": "Show(a=1)", "text": "x"})
    with pytest.raises(AttributeError):
        config.nodes = ()
    with pytest.raises(AttributeError):
        del config._plan
    with pytest.raises(TypeError, match=r"use PipelineConfig\.load"):
        headrace.PipelineConfig({"backend": "Show"})
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again != load({"backend": "Show(a=2)", "text": "x"})


@pytest.mark.parametrize(
    ("item", "said", "hint"),
    [
        ("./code", "is no Python file", None),
        (r"\u0000.py", "cannot be read", None),
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


def test_an_imported_file_that_cannot_be_read_is_a_problem(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    write(tmp_path / "code.py", "x = 1\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    (found,) = problems({"import": str(tmp_path / "code.py"), "backend": "Show"})
    assert found.code == "import"
    assert "cannot be read: [Errno 13] Permission denied" in found.message


def test_to_dict_with_its_folder_means_the_same_anywhere(tmp_path, monkeypatch):
    folder = tmp_path / "in $dir"
    file = write(folder / "m'.bin", "x")
    write(folder / "mine.py", CODE)
    path = write(
        folder / "c.toml",
        """
        import = ["mine.py"]
        [n]
        backend = "S[FromFile,Show(a=1,models=[\\"m'.bin\\"],cache=x.bin)]"
        [m]
        backend = "Show"
        model = "m'.bin"
        models = ["m'.bin"]
        """,
    )
    config = load(path)
    monkeypatch.chdir("/")
    plain = config.to_dict()
    assert plain["import"] == ["mine.py"]
    assert plain["m"] == {"backend": "Show", "model": "m'.bin", "models": ["m'.bin"]}
    again = load(plain, base=folder)
    assert (again, again.to_dict()) == (config, plain)
    found = options(again, "m")
    assert (found.model, found.models) == (file, [file])
    found = options(again, "n")
    assert (found.models, found.cache) == ([file], folder / "x.bin")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a folder in use")
def test_a_program_whose_working_directory_is_gone_reads_what_needs_none(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with headrace.pipe({"backend": "Identity"}) as pipe:
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
for left in (40, 80, 200, 400, *range(700, 760, 5)):
    config = at(sys.getrecursionlimit() - left, lambda: headrace.PipelineConfig.load(source))
pipe = at(sys.getrecursionlimit() - 60, lambda: headrace.pipe(source))
at(sys.getrecursionlimit() - 60, lambda: headrace.explain(source))
try:
    at(sys.getrecursionlimit() - 60, lambda: headrace.PipelineConfig.load({"backend": "Idntity"}))
except headrace.errors.ConfigError as error:
    print(error.problems[0].suggestion)
print(pipe({"data": 3})["result"])
pipe.close()
sys.setrecursionlimit(200)
try:
    headrace.PipelineConfig.load(source)
except headrace.errors.ConfigError as error:
    print(error.problems[0].code, error.problems[0].hint)
"""


def test_a_configuration_loads_from_a_stack_that_is_almost_used_up_and_needs_a_stack():
    done = python("-c", DEEP)
    short = "nesting Nest less deep, or raise sys.setrecursionlimit(200)."
    assert (done.stdout, done.stderr) == (f"Identity\n3\n{short}\n", "")


def test_a_file_with_a_byte_order_mark_and_windows_lines_is_read(tmp_path):
    path = tmp_path / "c.toml"
    path.write_bytes('\ufeffbackend = "Show"\r\na = 3\r\n'.encode())
    assert options(Path(path)).a == 3


# Files of tables that several files write, and configurations written for any folder.


def read_again(source, monkeypatch, folder, base):
    """Return a configuration as plain data and as pickled, both read in another folder."""
    config = load(source)
    pickled = pickle.dumps(config)
    monkeypatch.chdir(folder)
    again = load(config.to_dict(), base=base)
    assert again == config == pickle.loads(pickled)
    assert again.to_dict() == config.to_dict() == pickle.loads(pickled).to_dict()
    return again


def test_base_is_where_the_relative_paths_of_a_dict_start(tmp_path, monkeypatch):
    write(tmp_path / "in" / "m.bin", "")
    write(tmp_path / "in" / "base.toml", 'backend = "Show"\nmodel = "m.bin"\n')
    monkeypatch.chdir(tmp_path)
    for base in (tmp_path / "in", "in", str(tmp_path / "in")):
        config = load({"backend": "Show", "model": "m.bin"}, base=base)
        assert options(config).model == tmp_path / "in" / "m.bin"
        assert config.to_dict() == {"backend": "Show", "model": "m.bin"}
        other = load({"extends": "base.toml"}, base=base)
        assert other == config
    (found,) = problems({"backend": "Show", "model": "m.bin"})
    assert "no such file" in found.message
    assert ", got" not in found.message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("wrods.txt", "words.txt"), ("WORDS.text", "words.txt"), ("other/words.txt", None)),
        *(("id", "id.toml"), ("x", None)),
    ],
)
def test_the_file_beside_a_missing_one_that_has_a_like_name_is_suggested(tmp_path, written, meant):
    for name in ("words.txt", "id.toml"):
        write(tmp_path / name, 'backend = "Show"\n')
    suggestion = None if meant is None else str(tmp_path / meant)
    sources = [{"backend": "Show", "model": written}, {"backend": "Show", "extends": written}]
    for source in sources:
        with pytest.raises(headrace.errors.ConfigError) as caught:
            load(source, base=tmp_path)
        (found,) = caught.value.problems
        assert found.suggestion == suggestion
    assert problems(str(tmp_path / written))[0].suggestion == suggestion


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of any bytes, and links")
def test_neither_a_name_that_no_error_can_show_nor_a_link_to_nothing_is_suggested(tmp_path):
    def found():
        (only,) = problems({"backend": "Show", "model": str(tmp_path / "word.txt")})
        assert only.message == f"Show: model: no such file: {str(tmp_path / 'word.txt')!r}"
        return only.suggestion

    (tmp_path / os.fsdecode(b"w\xfford.txt")).touch()
    assert found() is None
    (tmp_path / "word.txt").symlink_to("gone.txt")
    (tmp_path / "words.md").touch()
    assert found() == str(tmp_path / "words.md")


def test_base_is_for_dicts_only(tmp_path):
    path = write(tmp_path / "c.toml", 'backend = "Show"\n')
    for source in (path, str(path), load(path)):
        with pytest.raises(TypeError, match="base is for a dict"):
            load(source, base=tmp_path)


def test_configurations_that_name_other_files_are_not_equal(tmp_path):
    for name in "ab":
        write(tmp_path / name / "m.bin", "")
    first, second = (
        load({"backend": "Show", "model": "m.bin"}, base=tmp_path / name) for name in "ab"
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
        files: dict[str, headrace.FilePath | list[headrace.FilePath]] = Field({})
        anything: dict[str, object] = Field({})

    init = Show.init
    forward = Show.forward


@pytest.mark.parametrize("header", ["", "[main]\n"])
def test_a_table_of_two_files_keeps_the_folder_of_each(header, tmp_path, monkeypatch, elsewhere):
    headrace.register(Deep)
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
    one, two = tmp_path / "base/one.bin", tmp_path / "base/two.bin"
    expected = {"a": one, "b": [two], "c": tmp_path / "child.bin"}
    assert options(file).files == expected
    kinds = {key: type(value) for key, value in options(file).anything.items()}
    assert kinds == {"text": str, "more": int}
    monkeypatch.chdir(elsewhere)
    kept = pickle.loads(pickle.dumps(load(file)))
    assert options(kept).files == expected


@pytest.mark.parametrize(
    "text",
    [
        '[global]\nbackend = "Show(model=\'{node_name}.bin\')"\n[a]\nnext = "b"\n[b]\n',
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


def test_an_expression_of_the_environment_keeps_its_files(tmp_path, monkeypatch, elsewhere):
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
    first, second, third, other = problems({"backend": "Show", "import": files, "max": 0})
    assert (first.code, other.code) == ("import", "key")
    assert first.message.endswith("failed in line 2: SystemExit: 3")
    assert second.message.endswith("failed in line 5: ValueError: no")
    assert third.message.endswith("failed in line 2: Skipped: no GPU")


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

    headrace.register(Choosy)
    found = problems({"backend": "Choosy", "mode": "fats", "queue_full": "rejct"})
    assert [(p.code, p.suggestion) for p in found] == [("key", "reject"), ("option", "fast")]
    far = problems({"backend": "Choosy", "mode": "x", "number": 3})
    assert [p.suggestion for p in far] == [None, None]


def test_a_parser_of_toml_that_tells_no_place_is_passed_on(tmp_path, monkeypatch):
    toml = pytest.importorskip("tomllib")

    def fails(*_, **__):
        raise toml.TOMLDecodeError("no place")

    monkeypatch.setattr(toml, "loads", fails)
    assert problem(write(tmp_path / "c.toml", "")).message == "this is no TOML: no place"


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
    assert f"    {line}" in found.render().splitlines()


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
backend = "Show"
"""


def test_what_is_wrong_has_the_line_and_column_of_its_file(tmp_path):
    write(tmp_path / "base.toml", "[global]\nmax = true\n")
    file = write(tmp_path / "c.toml", LINES)
    found = {p.path: (p.file.rpartition("/")[2], p.line, p.column) for p in problems(file)}
    assert found == {
        "global.max": ("base.toml", 2, 7),
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


INTO_B = "a = {backend = 'Show', next = 'b'}\n\n"


@pytest.mark.parametrize(
    ("content", "path", "line", "column"),
    [
        ('backend="""S[Show,\n  Shoe]"""', "main.backend", 2, 3),
        ('backend = """\nS[\n  Show,\n\tShoe\n]"""  # Shoe\n', "main.backend", 4, 2),
        ('backend = "S[Show,\\n Shoe]"', "main.backend", 1, 22),
        ("backend='Show'\nmax  =  'x'  # x", "main.max", 2, 9),
        ("backend='Show'\nbatch_sizes=[1,true]", "main.batch_sizes", 2, 13),
        ("backend='Show'\n\"m x\" = 1", "main.m x", 2, 1),
        ('\nmax = "x"\nbackend = "Show"\n', "main.max", 2, 7),
        ('a = {backend = "Show", queue_size = 5, size = 5}\n', "a.size", 1, 40),
        ("max = 1\n\n[node]\nmax = 2\n", "node", 3, 1),  # the table, where a key is missing
        ("[n]\n", "n", 1, 1),
        (f"{INTO_B}c = {{backend = 'Show', next = 'b'}}\n[b]\nbackend='Show'\n", "b", 4, 1),
        (f"{INTO_B}[b]\nbackend='Show'\nmap.a = {{result = 'date'}}", "b.map", 5, 9),
        (f"{INTO_B}[b]\nbackend='Show'\n[b.map]\na = {{result = 'date'}}", "b.map", 5, 1),
        (f"{INTO_B}[b]\nbackend='Show'\n[b.map.q]\nresult = 'data'", "b.map", 5, 1),
        (f"{INTO_B}b.map.a.result = 'date'\nb.backend='Show'", "b.map", 3, 18),
        (f"{INTO_B}[b.map]\na = {{result = 'date'}}\n[b]\nbackend='Show'", "b.map", 3, 1),
        (f"{INTO_B}[b]\nbackend='Show'\nmap.a.result = 'data'\nShow.a = 2", "b.Show", 6, 1),
        (f"{INTO_B}b.map.a.result = 'data'\nb.max = 2", "b", 3, 1),
    ],
)
def test_what_is_wrong_in_a_file_has_its_line_and_column(content, path, line, column, tmp_path):
    file = write(tmp_path / "c.toml", content)
    (found,) = problems(file)
    assert (found.path, found.line, found.column) == (path, line, column)
    assert found.render().startswith(f"{file}:{line}:{column}: {path}: ")


@pytest.mark.parametrize("given", [(), ({"backend": "Identity"},)])
def test_a_pipeline_of_a_configuration_says_what_makes_it(given):
    with pytest.raises(TypeError, match=r"headrace\.pipe"):
        headrace.Pipeline(*given)


@pytest.mark.parametrize(
    ("source", "marked"),
    [
        ({"main": {"backend": "Show", "instance_num": "x"}}, '"x"'),
        ({"main": {"backend": "Show", "min": 3, "max": 2}}, "2"),
        ({"main": {"backend": "Show", "min": 9, "batch_sizes": [3]}}, "[3]"),
        ({"main": {"backend": "Show", "next": "none"}}, '"none"'),
        ({"a": {"backend": "Show"}, "1st": {"backend": "Show"}}, "1st"),
        ({"main": {"backend": "Show", "device": Path("a/b")}}, '"a/b"'),
        ({"main": {"backend": "Show", "device": 2j}}, '"2j"'),
        ({"main": {"backend": "Show", "init": 5}}, "5"),
        ({"main": {"backend": "Show", "instances": 1}}, "instances"),
        ({"main": {"backend": "Show", "batch_policy": "Nope(x=1)"}}, "Nope"),
        ({"main": {"backend": "Show", "a": "x"}}, '"x"'),
        ({"main": {"backend": "Show", "Show::a": "x"}}, '"x"'),
        ({"main": {"backend": "Show"}, "global": {"a": "x"}}, '"x"'),
        ({"main": {"backend": "Show(a=x)"}}, "a=x"),
    ],
)
def test_a_problem_marks_the_value_that_is_wrong_or_the_key_where_it_is_the_key(source, marked):
    (found,) = problems(source)
    assert found.text[slice(*found.span)] == marked
