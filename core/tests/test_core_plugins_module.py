"""``headrace.plugins``: what is installed and why not, for programs."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from processes import run_process

import headrace
from headrace.policies import BatchPolicy, BestFit, DispatchPolicy, Greedy


def test_a_record_per_plugin_with_its_state_and_reason(site, monkeypatch):
    site.backend("headrace-good", "Good", "hrt_good", requires=("headrace>=0.1",))
    site.backend("headrace-old", "Old", "hrt_old", requires=("headrace>=9,<10",))
    site.backend("headrace-shut", "Shut", "hrt_shut")
    monkeypatch.setenv("HEADRACE_PLUGINS", "-shut")
    found = {plugin.plugin: plugin for plugin in headrace.plugins.installed()}
    good, old, shut = found["good"], found["old"], found["shut"]
    assert (good.distribution, good.version, good.range) == ("headrace-good", "1.0", ">=0.1")
    assert good.backends == {"Good": "hrt_good:Good"}
    assert (good.state, good.reason, good.remedy) == ("ok", None, None)
    assert old.state == "incompatible"
    assert headrace.__version__ in old.reason
    assert "pip install" in old.remedy
    assert (shut.state, "HEADRACE_PLUGINS" in shut.reason) == ("disabled", True)
    assert not {"hrt_good", "hrt_old", "hrt_shut"} & set(sys.modules)
    with pytest.raises(dataclasses.FrozenInstanceError):
        good.state = "broken"


def test_the_module_is_light():
    program = (
        "import sys, headrace; headrace.plugins.Plugin\n"
        "print([m for m in ('pydantic', 'importlib.metadata', 'pluggy', 'numpy') if m in sys.modules])"
    )
    done = run_process([sys.executable, "-c", program], check=True)
    assert done.stdout == "[]\n"


def test_names_are_imported_when_they_are_asked_for_with_errors_that_say_what_to_do(site):
    site.backend("headrace-good", "Good", "hrt_good")
    points = "[headrace.backends]\nGone = hrt_gone:Gone\n[headrace.plugins]\nx = hrt_hooks\n"
    hooks = """
    from headrace.hookspecs import hookimpl
    @hookimpl
    def headrace_commands():
        return {"go": "hrt_hooks:go", "lost": "hrt_hooks:lost"}
    def go():
        pass
    """
    site.add("headrace-other", points, {"hrt_hooks": hooks})
    found = {plugin.plugin: plugin for plugin in headrace.plugins.installed()}
    assert found["good"].backend("Good") is sys.modules["hrt_good"].Good
    with pytest.raises(headrace.errors.PluginLoadError, match="headrace-other"):
        found["other"].backend("Gone")
    commands = found["other"].offers["commands"]
    assert found["other"].load(commands["go"]) is sys.modules["hrt_hooks"].go
    with pytest.raises(headrace.errors.PluginLoadError, match="no attribute 'lost'"):
        found["other"].load(commands["lost"])


def test_core_is_told_as_if_it_were_a_plugin():
    core = headrace.plugins.core()
    assert issubclass(core.backend("Identity"), headrace.Backend)
    assert core.offers["batch_policies"]["greedy"]
    assert (core.state, core.usable, core.version) == ("ok", True, headrace.__version__)


def test_why_a_name_is_unknown(site):
    site.backend("headrace-old", "Old", "hrt_old", requires=("headrace>=9",))
    why = headrace.plugins.why_unknown
    assert why("Old").code == "plugin_incompatible"
    assert why("Lod", ["Load", "Save"]).suggestion == "Load"
    name = next(iter(headrace.plugins.KNOWN_BACKENDS))
    assert headrace.plugins.KNOWN_BACKENDS[name].startswith("headrace-")
    assert headrace.plugins.qualifier("Headrace_CV") == "cv"


def test_policies_are_those_that_a_pipeline_would_have():
    class Both(BatchPolicy, DispatchPolicy):
        class Options(headrace.Options):
            wait_ms: float = 1

        def cut(self, queue, instance, now):
            """Never asked."""

        def choose(self, weight, free):
            """Never asked."""

    headrace.register("BothForATool", Both)
    found = headrace.plugins.policies(
        {
            "a": {"backend": "Identity", "next": "b", "max": 4, "batching_timeout": 5},
            "b": {
                "backend": "Identity",
                "batch_policy": "BothForATool(wait_ms=3)",
                "dispatch_policy": "BothForATool",
            },
        }
    )
    batch, dispatch = found["a"]
    assert (type(batch), type(dispatch)) == (Greedy, BestFit)
    assert batch.options.batching_timeout == 5
    assert found["b"][0] is found["b"][1]
    assert found["b"][0].options.wait_ms == 3


def test_the_public_names_are_these_and_the_readme_has_them_all():
    assert sorted(headrace.plugins.__all__) == [
        "BuiltExpression",
        "KNOWN_BACKENDS",
        "PROBE_METHODS",
        "Plugin",
        "build",
        "core",
        "import_file",
        "installed",
        "is_address",
        "library",
        "located",
        "origin_of",
        "policies",
        "qualifier",
        "read_lines",
        "read_text",
        "reads",
        "records_of",
        "refresh",
        "resolve",
        "tables_of",
        "threads_apart",
        "usable_cpus",
        "why_unknown",
    ]
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## What is installed")[2].partition("\n## ")[0]
    assert [name for name in headrace.plugins.__all__ if not re.search(rf"\b{name}\b", table)] == []


def test_what_is_installed_later_is_seen_after_a_refresh(site):
    before = headrace.plugins.installed()
    site.backend("headrace-late", "Late", "hrt_late")
    assert headrace.plugins.installed() == before
    headrace.plugins.refresh()
    assert "late" in [plugin.plugin for plugin in headrace.plugins.installed()]


def test_a_notebook_shows_what_an_installed_distribution_draws(site):
    site.add("a-gone", "[headrace.notebook]\nhtml = hrt_not_there:draw\n", {})
    drawing = "def draw(about):\n    return f'<b>{type(about).__name__}</b>'\n"
    site.add(
        "b-drawing", "[headrace.notebook]\nhtml = hrt_drawing:draw\n", {"hrt_drawing": drawing}
    )
    with headrace.pipe({"backend": "Identity"}) as pipe:
        shown = [one._repr_html_() for one in (pipe, pipe.config, pipe.stats())]
    assert shown == ["<b>Pipeline</b>", "<b>PipelineConfig</b>", "<b>Statistics</b>"]
