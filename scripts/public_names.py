"""The public surface as data, in scripts/public_names.json: what a release may not take away without a deprecation.

`python scripts/public_names.py` writes the file; a change of it that takes something away is a breaking one.

It has the names of the public modules with their parameters, the options of all backends, the codes of errors and problems, the
keys of ``stats()`` and ``describe()``, and the commands with their options and exit statuses. `scripts/compatibility.py` compares it
with that of a release.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import api
import catalogue
import distributions

import headrace
from headrace_cli import app, console
from headrace_cli.installed import plugin_commands
from headrace_cli.names import COMMANDS

FILE = Path(__file__).resolve().with_suffix(".json")


def parameters(function: Any) -> dict[str, str] | None:
    """Return the parameters of a function, each with its kind and whether it must be given; None where it has no signature."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return {
        one.name: f"{one.kind.description}{'' if one.default is one.empty else ', optional'}"
        for one in given
        if one.name not in {"self", "cls"}
    }


def of_name(found: Any) -> Any:
    """Return what users of a name rely on: its parameters, and those of its methods, or its kind."""
    if inspect.isclass(found):
        members = {
            name: parameters(getattr(member, "__func__", member))
            if not isinstance(member, property)
            else "property"
            for name, member in api.own(found).items()
            if not name.startswith("_")
            and (callable(member) or isinstance(member, (property, classmethod, staticmethod)))
        }
        return {
            "code": getattr(found, "code", None),
            "parameters": parameters(found),
            "members": members,
        }
    return parameters(found) if inspect.isfunction(found) else type(found).__name__


def keys_of(value: Any) -> Any:
    """Return the keys of nested dicts, the first element of lists standing for all."""
    if isinstance(value, dict):
        return {key: keys_of(one) for key, one in value.items()}
    return (
        [keys_of(value[0])]
        if isinstance(value, list) and value and isinstance(value[0], dict)
        else None
    )


def surface() -> dict[str, Any]:
    """Return the public surface."""
    modules = {}
    for path in api.MODULES:
        module = importlib.import_module(path)
        modules[path] = {name: of_name(getattr(module, name)) for name in api.names(module)}
    backends = {
        one["name"]: {
            option["name"]: "required" if option["required"] else option["default"]
            for option in one["options"]
        }
        for folder in catalogue.folders()
        for one in catalogue.described(catalogue.project(folder)["name"])
    }
    with headrace.pipe({"backend": "Identity"}) as pipe:
        pipe({"data": 1})
        stats = pipe.stats()
        stats["nodes"]["main"]["batch_size"].pop("histogram")  # its keys are sizes
        shown = {"stats": keys_of(stats), "describe": keys_of(pipe.describe()["nodes"]["main"])}
    return {
        "modules": modules,
        "backends": backends,
        **shown,
        "codes": sorted(codes()),
        "commands": commands(),
        "exit_statuses": {
            name: value
            for name, value in vars(console).items()
            if name.isupper() and not name.startswith("_") and isinstance(value, int)
        },
    }


@functools.cache
def codes() -> set[str]:
    """Return the codes of errors and problems that stand as texts in the sources of all distributions."""
    found = set()
    for path in (path for source in distributions.sources() for path in source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code":
                found.add(_constant(node.value))
            elif isinstance(node, ast.Call):
                name = ast.unparse(node.func).rpartition(".")[2]
                if name == "Problem" or (name == "add" and len(node.args) > 1):
                    found.add(_constant(node.args[0]) if node.args else None)
                found |= {_constant(one.value) for one in node.keywords if one.arg == "code"}
    return {one for one in found if isinstance(one, str) and re.fullmatch("[a-z]+(_[a-z]+)*", one)}


def _constant(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def commands() -> dict[str, Any]:
    """Return the commands of all distributions, each with its arguments and options, and whether they must be given."""
    group = app.typer.main.get_command(app.app)
    own = {name: group.get_command(None, name) for name in COMMANDS}
    plugins = [name for name, _ in plugin_commands.commands_of_plugins()]
    return {
        name: _arguments(command)
        for name, command in {
            **own,
            **{name: plugin_commands.for_completion(name) for name in plugins},
        }.items()
    }


def _arguments(command: Any) -> dict[str, Any]:
    """Return what a command takes, and what those inside it take."""
    taken = {
        text: "required" if one.required else "optional"
        for one in command.params
        for text in [*one.opts, *one.secondary_opts]
    }
    return {
        **taken,
        **{name: _arguments(one) for name, one in getattr(command, "commands", {}).items()},
    }


def breaking(before: Any, now: Any, path: str = "") -> list[str]:
    """Return what was taken away, or must be given from now on, between two surfaces."""
    if isinstance(before, dict) and isinstance(now, dict):
        gone = [f"{path}{key} is gone" for key in before if key not in now]
        inside = [
            one
            for key in before
            if key in now
            for one in breaking(before[key], now[key], f"{path}{key} > ")
        ]
        kinds = ("positional", "keyword", "variadic")
        told = [isinstance(one, str) and one.startswith(kinds) for one in before.values()]
        in_signature = path.endswith("parameters > ") or (bool(told) and all(told))
        added = [
            f"{path}{key} must be given"
            for key in now
            if key not in before
            and (now[key] == "required" or (in_signature and _must_be_given(now[key])))
        ]
        return [*gone, *inside, *added]
    if (
        isinstance(before, list)
        and isinstance(now, list)
        and all(isinstance(one, str) for one in before)
    ):
        return [f"{path}{one} is gone" for one in before if one not in now]
    return [] if before == now else [f"{path.removesuffix(' > ')}: {before!r} has become {now!r}"]


def _must_be_given(kind: Any) -> bool:
    return (
        isinstance(kind, str) and not kind.endswith("optional") and not kind.startswith("variadic")
    )


if __name__ == "__main__":
    found = surface()
    if FILE.is_file():
        for change in breaking(json.loads(FILE.read_text(encoding="utf-8")), found):
            print(f"breaking: {change}", file=sys.stderr)
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
