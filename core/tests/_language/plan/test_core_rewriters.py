"""The group `headrace.rewriters`: what plugins translate before anything is planned."""

import pickle
import sys

import pytest

import headrace
from headrace.errors import ConfigError, PluginError

OLDER = """
from headrace.errors import ConfigError, Problem

asked = []

def translate(tables, parse):
    asked.append(sorted(tables))
    for name, table in list(tables.items()):
        if "replicas" in table:
            table["instance_num"] = table.pop("replicas")
        if "engine" in table:
            tree = parse(name, "engine")
            table["backend"] = tree.children[0]
            del table["engine"]
        if "moved" in table:
            tables["other"] = {"backend": parse(name, "moved"), "size": table.pop("size")}
            del table["moved"]
        if "wrong" in table:
            part = parse(name, "wrong").children[0]
            place = {"file": part.source.file, "path": part.source.path}
            problem = Problem("older", "no table says it", text=part.text, span=part.name_span, **place)
            raise ConfigError([problem])
        if "fails" in table:
            raise KeyError("fails")
    return tables
"""


@pytest.fixture
def older(site):
    """The tables that the function of an installed plugin was asked with."""
    names = ("replicas", "engine", "moved", "wrong", "fails", "Older")
    table = dict.fromkeys(names, "hrt_older:translate")
    site.names("headrace-older", "rewriters", table, {"hrt_older": OLDER})
    return lambda: sys.modules["hrt_older"].asked if "hrt_older" in sys.modules else []


def refused(source):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(source)
    return caught.value.problems


def test_a_key_is_translated_once_for_each_configuration(older):
    source = {
        "a": {"backend": "Identity", "replicas": 2, "next": "b"},
        "b": {"backend": "Identity", "replicas": 3},
    }
    config = headrace.PipelineConfig.load(source)
    assert older() == [["a", "b", "global"]]
    assert [node.instance_num for node in config.plan().nodes.values()] == [2, 3]
    assert config.to_dict() == source
    assert headrace.explain(config)["nodes"]["a"]["keys"]["instance_num"]["value"] == 2
    assert pickle.loads(pickle.dumps(config)).plan().nodes["b"].instance_num == 3


def test_it_is_asked_after_files_are_merged_and_not_where_its_names_are_missing(older, tmp_path):
    (tmp_path / "base.toml").write_text('[a]\nbackend = "Identity"\nreplicas = 2\n')
    (tmp_path / "top.toml").write_text('extends = "base.toml"\n[a]\nreplicas = 4\n')
    headrace.PipelineConfig.load(tmp_path / "base.toml")
    assert len(older()) == 1
    assert headrace.PipelineConfig.load(tmp_path / "top.toml").plan().nodes["a"].instance_num == 4
    headrace.PipelineConfig.load({"backend": "Identity"})
    assert len(older()) == 2


def test_a_word_asks_for_it_as_a_key_does(older):
    assert refused({"backend": "S[Identity,Older[X]]"})[0].code == "unknown_backend"
    assert older() != []


def test_a_tree_has_its_placeholders_replaced_and_shows_where_it_was_written(older, monkeypatch):
    monkeypatch.setenv("HRT_INNER", "Identity")
    config = {"a": {"engine": "Older[S[${HRT_INNER},Identity]]"}}
    with headrace.pipe(config) as pipe:
        assert pipe({"data": 3})["result"] == 3
        assert pipe.describe()["nodes"]["a"]["expression"] == "S[Identity,Identity]"
    (found,) = refused({"a": {"engine": "Older[S[Identity,Identty]]"}})
    assert (found.path, found.suggestion) == ("a.engine", "Identity")
    assert found.text[slice(*found.span)] == "Identty"


def test_what_is_moved_keeps_the_place_where_it_was_written(older, tmp_path):
    @headrace.register("HrtSized", replace=True)
    class Sized(headrace.Backend):
        class Options(headrace.Options):
            size: int

        def forward(self, batch):
            for request in batch:
                request["result"] = self.size

        def init(self, options, context):
            self.size = options.size

    nodes = {"a": {"backend": "Identity", "next": "other", "moved": "HrtSized", "size": 3}}
    with headrace.pipe(nodes) as pipe:
        assert pipe({"data": 0})["result"] == 3
    text = '[a]\nbackend = "Identity"\nnext = "other"\nmoved = "HrtSized"\nsize = "x"\n'
    (tmp_path / "a.toml").write_text(text)
    (found,) = refused(tmp_path / "a.toml")
    assert (found.path, found.line) == ("a.size", 5)


def test_what_it_cannot_translate_is_a_problem_at_its_place(older):
    (found,) = refused({"a": {"backend": "Identity", "wrong": "S[Identity]"}})
    assert (found.code, found.path) == ("older", "a.wrong")
    assert found.text[slice(*found.span)] == "Identity"
    (found,) = refused({"a": {"engine": "S["}})
    assert (found.code, found.path) == ("syntax", "a.engine")
    (found,) = refused({"a": {"engine": 3}})
    assert (found.code, found.path) == ("type", "a.engine")


def test_an_error_of_the_function_names_its_distribution(older):
    with pytest.raises(PluginError, match=r"headrace-older could not translate 'fails'.*KeyError"):
        headrace.PipelineConfig.load({"backend": "Identity", "fails": True})


def test_two_plugins_that_translate_one_name_are_refused(older, site):
    site.names("headrace-more", "rewriters", {"replicas": "hrt_more:translate"})
    (found,) = refused({"backend": "Identity", "replicas": 2})
    assert (
        "headrace-older and headrace-more" in found.message
        or "headrace-more and headrace-older" in found.message
    )


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({"backend": "Identity", "hrt_old": 3}, "main.hrt_old"),
        ({"backend": "S[Identity,hrt_old]"}, "main.backend"),
        ({"global": {"hrt_old": "X"}, "a": {"backend": "Identity"}}, "global.hrt_old"),
    ],
)
def test_where_the_plugin_is_missing_the_error_says_what_to_install(
    site, known_elsewhere, source, path
):
    known_elsewhere("hrt_old", "headrace-older")
    (found,) = refused(source)
    assert (found.code, found.path) == ("missing_plugin", path)
    assert "pip install headrace-older" in found.hint
