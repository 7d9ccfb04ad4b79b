"""How much there is to stand for beside lines of code. A bound moves only in a commit that says why."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from headrace_cli import plugin_commands
from headrace_cli.names import COMMANDS

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from counts import public

MOST = {"distributions": 18, "commands": 39, "options of commands": 381, "words": 90}


def test_there_is_no_more_to_stand_for():
    found = public()
    assert {name: found[name] for name in MOST if found[name] > MOST[name]} == {}


def below(command):
    """Return a command and all that stand below it."""
    inner = getattr(command, "commands", {}).values()
    return [command, *(one for each in inner for one in below(each))]


def test_commands_and_options_are_those_that_run():
    own = [getattr(importlib.import_module(f"headrace_cli.{name}"), name) for name in COMMANDS]
    names = [name for name, _ in plugin_commands.commands_of_plugins()]
    commands = [
        *map(plugin_commands.made_command, own),
        *map(plugin_commands.for_completion, names),
    ]
    every = [inner for one in commands for inner in below(one)]
    options = [one for each in every for one in each.params if one.param_type_name == "option"]
    found = public()
    assert (len(every), len(options)) == (found["commands"], found["options of commands"])
