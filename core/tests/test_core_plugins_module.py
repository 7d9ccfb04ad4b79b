"""``headrace.plugins``: what is installed and why not, for programs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import typer

import headrace
from headrace._cli.app import app
from headrace._registry.catalogue import CORE_COMMANDS


def test_a_record_per_plugin_with_its_state_and_reason(site, monkeypatch):
    site.backend("headrace-good", "Good", "hrt_good", requires=("headrace>=0.1",))
    site.backend("headrace-old", "Old", "hrt_old", requires=("headrace>=9,<10",))
    site.backend("headrace-shut", "Shut", "hrt_shut")
    monkeypatch.setenv("HEADRACE_PLUGINS", "-shut")
    found = {plugin.plugin: plugin for plugin in headrace.plugins.installed(refresh=True)}
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


def test_the_command_prints_the_same(site):
    site.backend("headrace-good", "Good", "hrt_good")
    program = f"import sys; sys.path.insert(0, {str(site.folder)!r})\n"
    program += "from headrace.__main__ import main; sys.argv[1:] = ['plugins', 'list', '--json']\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}main()"], capture_output=True, text=True, check=True
    )
    same = [plugin.to_dict() for plugin in headrace.plugins.installed(refresh=True)]
    assert json.loads(done.stdout) == same


def test_the_module_is_light():
    program = (
        "import sys, headrace; headrace.plugins.Plugin\n"
        "print([m for m in ('pydantic', 'importlib.metadata', 'pluggy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_the_names_of_our_commands_are_those_of_the_command_line():
    assert sorted(CORE_COMMANDS) == sorted(typer.main.get_command(app).commands)
