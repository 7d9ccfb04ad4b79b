"""How much there is to stand for beside lines of code. A bound moves only in a commit that says why."""

from __future__ import annotations

import importlib
import re

from counts import public
from distributions import ROOT

from headrace_cli.installed import plugin_commands
from headrace_cli.names import COMMANDS

MOST = {"distributions": 19, "commands": 34, "options of commands": 183, "words": 96}


def test_there_is_no_more_to_stand_for():
    found = public()
    assert {name: found[name] for name in MOST if found[name] > MOST[name]} == {}


def below(command):
    """Return a command and all that stand below it."""
    inner = getattr(command, "commands", {}).values()
    return [command, *(one for each in inner for one in below(each))]


def options_and_commands():
    """Return the options that typer reads, and the commands, from the sources of both."""
    own = [
        getattr(importlib.import_module(f"headrace_cli.commands.{name}"), name) for name in COMMANDS
    ]
    names = [name for name, _ in plugin_commands.commands_of_plugins()]
    commands = [
        *map(plugin_commands.made_command, own),
        *map(plugin_commands.for_completion, names),
    ]
    every = [inner for one in commands for inner in below(one)]
    options = [one for each in every for one in each.params if one.param_type_name == "option"]
    return options, every


def test_commands_and_options_are_those_that_run():
    options, every = options_and_commands()
    found = public()
    assert (len(every), len(options)) == (found["commands"], found["options of commands"])


def test_every_option_stands_on_a_page_in_an_example_or_in_a_test():
    places = ("README.md", "*/README.md", "*/*/README.md", "docs/**/*.md", "examples/**/*.*")
    paths = {path for place in (*places, "**/tests/**/*.py") for path in ROOT.glob(place)}
    texts = [path.read_text("utf-8", "replace") for path in paths if path.suffix in {".md", ".py"}]
    # A page that is made of what the code says names every option.
    written = "\n".join(text for text in texts if "Made by `python scripts/" not in text)
    used = set(re.findall(r"(?<![-\w])--[a-z][-a-z0-9]*", written))
    # Options of `headrace trt` are those of the backend, whose page has them as keys.
    keys = {"--" + name.replace("_", "-") for name in re.findall(r"`([a-z]\w*)`", written)}
    options, _ = options_and_commands()
    assert [one.opts for one in options if not {*one.opts} & (used | keys)] == []
