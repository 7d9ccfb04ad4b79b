"""What moved, as docs/policies.md says: the old form says where it is now, and the new one works."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_cli.app import app

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "policies.md").read_text(encoding="utf-8")
MOVED = {
    "flow": ("HasKey(k)[Identity]", "NotHasKey(k)[Identity]", "Random(0.5)[Identity]", "Queue(q)", "Send(q)", "Recv(q)", "Observer(q)", "Loop(until=result)[Identity]", "Restart(nodes=[main])", "Repost[main]", "Fallback[Identity]", "DI[BackgroundThread,Identity]", "With[BackgroundThread,Identity]"),
    "process": ("Process[Identity]",),
    "tensors": ("CatSplit[Identity,Identity,Identity]",),
}  # fmt: skip
WORDS = [(word, f"headrace-{plugin}") for plugin, words in MOVED.items() for word in words]


def hide(monkeypatch, *hidden):
    """Let distributions look as if they were not installed."""
    found = [*importlib.metadata.distributions()]
    left = [one for one in found if one.metadata["Name"] not in hidden]
    assert len(left) < len(found)
    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: left)
    monkeypatch.setenv("HEADRACE_PLUGINS", "-nothing")  # another value than before: look again


@pytest.fixture
def without_flow(monkeypatch):
    """Let what left core look as if it were not installed."""
    hide(monkeypatch, "headrace-flow", "headrace-process", "headrace-tensors")


def test_the_page_names_each_of_them_and_where_it_is():
    part = " ".join(TEXT.partition("## Upgrade\n")[2].partition("\n- A ")[0].split())
    flow, _, others = part.partition(" are in `headrace-flow`, ")
    names = [re.split(r"[(\[]", word)[0] for word in MOVED["flow"]]
    assert re.findall(r"`(\w+)`", flow) == [*names, "Aspect", "ModelLoader", "KVStorage"]
    assert others.startswith("`Process` in `headrace-process`, `CatSplit` in `headrace-tensors`.")


def written(word):
    """Write a configuration with a word where it belongs."""
    if "Repost" in word:  # it stands last, and is not reached here
        return {"backend": f"S[Identity,(or){word}]"}
    return (
        {"init": word, "backend": "Identity"}
        if "Queue" in word
        else {"backend": f"S[Identity,{word}]"}
    )


@pytest.mark.parametrize(("word", "by"), WORDS)
def test_a_word_that_left_core_works_where_its_distribution_is(word, by):
    with headrace.pipe(written(word)) as pipe:
        if "(q)" in word:
            assert set(pipe.stats()["queues"]) == {"q"}
        else:
            assert pipe({"data": 1})["result"] == 1


@pytest.mark.usefixtures("without_flow")
@pytest.mark.parametrize(("word", "by"), WORDS)
def test_without_the_distribution_such_a_word_says_where_it_is(word, by, tmp_path):
    config = written(word)
    with pytest.raises(ConfigError) as caught:
        headrace.pipe(config)
    found = caught.value.problems[0]
    name = re.split(r"[(\[]", word)[0]
    says = f"{name!r} comes with {by}, which is not installed"
    assert (found.code, found.message) == ("missing_plugin", says)
    assert f"pip install --find-links dist {by}" in found.hint
    assert found.text[slice(*found.span)] == name

    file = tmp_path / "node.toml"
    file.write_text("".join(f"{key} = {value!r}\n" for key, value in config.items()))
    done = CliRunner().invoke(app, ["check", str(file)])
    assert done.exit_code != 0
    shown = re.sub(r"\s+", " ", done.output)
    assert says in shown
    assert "^" * len(name) in shown


WIRED = [
    ({"backend": "Identity", "entrypoint": "DagDispatcher"}, "entrypoint"),
    (
        {"a": {"backend": "Identity", "node_entrypoint": "Batching[Reflect[backend]]"}},
        "node_entrypoint",
    ),
    ({"backend": "Identity", "init": "Register(x)[Identity]"}, "Register"),
    ({"backend": "IoC[Identity;Proxy[Identity]]"}, "Proxy"),
]


@pytest.mark.usefixtures("without_flow")
@pytest.mark.parametrize(("config", "name"), WIRED)
def test_without_flow_a_configuration_that_wires_itself_says_where_that_is(config, name):
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    (found,) = [one for one in caught.value.problems if one.code == "missing_plugin"]
    assert found.message == f"{name!r} comes with headrace-flow, which is not installed"
    assert "pip install headrace-flow" in found.hint
    assert found.text[slice(*found.span)] == name


def test_the_page_names_what_left_core_for_other_keys():
    table = TEXT.partition("These names are gone:\n")[2].partition("\n- ")[0]
    first = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    flow = next(one for one in headrace.plugins.installed() if one.plugin == "flow")
    offered = flow.offers["rewriters"]
    new = {"Block", "BackendProxy", "ProxyFromParam", "ModelLoadder"}  # which core never had
    kept = {re.split(r"[(\[]", word)[0] for word in MOVED["flow"]} | {"Aspect", "ModelLoader"}
    assert {*re.findall(r"[A-Za-z_]+", first)} >= {*offered} - new - kept


def test_a_fallback_goes_on_and_says_where_the_word_is(monkeypatch):
    hide(monkeypatch, "headrace-process")
    says = "'Process' comes with headrace-process, which is not installed"
    with headrace.pipe({"backend": "Fallback[Process[Identity],Identity]"}) as pipe:
        built = pipe.describe()["nodes"]["main"]["tree"]["built"]
    assert built["chosen"] == "Identity"
    assert says in built["not_chosen"][0]
    with pytest.raises(SetupError, match=says):
        headrace.pipe({"backend": "Fallback[Process[Identity]]"})


@pytest.mark.usefixtures("without_flow")
def test_a_misspelt_word_that_left_is_as_unknown_as_any():
    with pytest.raises(ConfigError, match="unknown backend 'Qeue'"):
        headrace.pipe({"backend": "Identity", "init": "Qeue(q)"})


def test_a_plugin_that_is_not_allowed_is_said_to_be_so(monkeypatch):
    monkeypatch.setenv("HEADRACE_PLUGINS", "-flow")
    with pytest.raises(ConfigError, match="HEADRACE_PLUGINS") as caught:
        headrace.pipe({"backend": "Identity", "init": "Queue(q)"})
    assert caught.value.problems[0].code == "plugin_disabled"


def test_core_knows_no_old_names():
    for name in ("KVStorage", "Queue"):
        with pytest.raises(AttributeError, match=name):
            getattr(headrace, name)
    with pytest.raises(ConfigError, match="unknown backend 'headrace:Queue'"):
        headrace.pipe({"backend": "Identity", "init": "headrace:Queue(q)"})
