"""Hooks are pluggy's: what its marker says holds, calls can be traced, and nothing calls them in vain."""

from __future__ import annotations

import sys

import pluggy
import pytest
from loading import python

import headrace
from headrace import hookspecs

PROBE = """
from headrace.hookspecs import hookimpl

{marker}
def {name}({arguments}):
    return {{"Mine": "hrt_mine_probe:Mine"}}
"""

MINE = """
told = []

class Mine:
    def request_done(self, node, request, started, ended, error):
        told.append(request["data"])
"""

LATER = """
@hookimpl(optionalhook=True)
def headrace_of_a_later_version():
    return {"a": "b:c"}
"""

POINTS = "[headrace.plugins]\nh = hrt_mine\n"


def hooks(marker="@hookimpl", name="headrace_probes", arguments=""):
    return PROBE.format(marker=marker, name=name, arguments=arguments)


@pytest.fixture
def installed(site):
    """Install a plugin with the code of a module of hooks; give a function that finds its record."""

    def install(code):
        site.add("headrace-mine", POINTS, {"hrt_mine": code, "hrt_mine_probe": MINE})
        return next(one for one in headrace.plugins.installed() if one.plugin == "mine")

    return install


def told():
    with headrace.pipe({"backend": "Identity", "probes": ["Mine"]}) as pipe:
        pipe({"data": 1})
    return sys.modules["hrt_mine_probe"].told


def test_a_hook_of_a_later_version_may_be_optional(installed):
    assert installed(hooks() + LATER).state == "ok"
    assert told() == [1]


def test_a_function_may_have_a_name_of_its_own(installed):
    marker = '@hookimpl(specname="headrace_probes")'
    assert installed(hooks(marker, "probes_of_mine")).state == "ok"
    assert told() == [1]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            hooks(name="headrace_prob"),
            "there is no hook 'headrace_prob'. Did you mean 'headrace_probes'?",
        ),
        (hooks(name="something_else"), "is marked optionalhook=True"),
        (hooks(marker=""), "headrace_probes has no marker @hookimpl"),
        (hooks(arguments="pipeline"), "Argument(s) {'pipeline'} are declared"),
        (hooks().replace("return {", "return [{").replace("}\n", "}]\n"), "gave [{"),
    ],
)
def test_a_function_that_nobody_would_call_is_a_reason(installed, code, says):
    record = installed(code)
    assert record.state == "broken"
    assert says in record.reason
    assert not record.offers["probes"]


def test_who_implements_a_hook_that_is_to_go_is_warned(installed, monkeypatch):
    def headrace_elders():
        """Return nothing that anybody asks for."""

    warning = DeprecationWarning("write headrace_probes")
    elders = pluggy.HookspecMarker("headrace")(headrace_elders, warn_on_impl=warning)
    monkeypatch.setattr(hookspecs, "headrace_elders", elders, raising=False)
    with pytest.warns(DeprecationWarning, match="write headrace_probes") as caught:
        assert installed(hooks(name="headrace_elders")).state == "ok"
    assert caught[0].filename.endswith("hrt_mine.py")


def test_calls_are_traced_to_stderr_where_the_environment_says_so(installed, monkeypatch, capsys):
    assert installed(hooks()).state == "ok"
    assert "headrace_probes" not in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_HOOK_TRACE", "1")
    headrace.plugins.refresh()
    headrace.plugins.installed()
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mine: ")]
    assert any("mine:   headrace_probes" in line for line in lines)
    assert any("finish headrace_probes --> [{'Mine'" in line for line in lines)


def test_a_configuration_that_names_only_backends_imports_no_hooks(site):
    points = POINTS + "[headrace.backends]\nFloor = math:floor\n"
    site.add("headrace-mine", points, {"hrt_mine": hooks(), "hrt_mine_probe": MINE})
    with headrace.pipe({"backend": "Floor", "batch_policy": "greedy", "max": 2}) as pipe:
        assert pipe({"data": 1.5})["result"] == 1
    assert "hrt_mine" not in sys.modules
    assert told() == [1]
    assert "hrt_mine" in sys.modules


ENVIRONMENT = """
import os
before = dict(os.environ)
import headrace
headrace.PipelineConfig.load({"backend": "Identity"})
headrace.plugins.installed()
print(dict(os.environ) == before)
"""


def test_loading_a_configuration_and_listing_plugins_change_no_variable(monkeypatch):
    monkeypatch.setenv("HEADRACE_OFFLINE", "1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert python("-c", ENVIRONMENT).stdout == "True\n"
