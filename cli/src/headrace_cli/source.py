"""Reading the argument CONFIG: a file or an expression, with the values of ``--set``."""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, HeadraceError, among, nearest
from headrace.plugins import read_text
from headrace_cli.console import WrongArgument, print_message

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OF_COMMANDS = {"models": "headrace serve --check --models", "sources": "headrace video"}
"""Tables at the top of files that are no configurations, and who reads those files."""

_NO_NODES = ("extends", "import", "global")
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(\w+)(?::-([^{}]*))?\}")


def is_file(text: str) -> bool:
    """Return whether CONFIG names a file, or a pipe, which is refused as a file; else it is an expression."""
    there = os.path.exists(text) and (not os.path.isdir(text) or headrace.plugins.reads(text))  # noqa: PTH110, PTH112 - any text
    return text.endswith(".toml") or there or headrace.plugins.is_address(text)


def source_of(name: str, settings: Sequence[str] = ()) -> str | dict[str, Any]:
    """Return the source for `headrace.pipe`: a path, or a dict that includes the settings.

    Args:
        name: A file or an expression.
        settings: Texts ``KEY=VALUE``, later ones win. The key is a key of the only node, or
            ``NODE.KEY``, or ``global.KEY``. The value is read as TOML where that is possible, else as a text.
            Relative paths in it start from the working directory.

    Raises:
        WrongArgument: A text is no ``KEY=VALUE``, sets a table and a value under one key, names no node, or sets what a
            file extends.
    """
    if is_file(name) and not settings:
        return name
    source: dict[str, Any] = {"backend": name}
    top = source
    if is_file(name):
        source, top = (
            {"extends": [name.replace("${", "$${")]},
            _top_level(_in_home(headrace.plugins.located(name)), set()),
        )
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise WrongArgument(f"--set: expected KEY=VALUE, got {text!r}")
        parts = _parts(key.strip())
        if (
            parts[0] == "extends" and top is not source
        ):  # it would take the place of the file itself
            raise WrongArgument(
                f"--set {text}: what {name} extends cannot be changed here; write a file that extends both"
            )
        _set(source, _of_node(parts, top), _value(value.strip()), text)
    is_flat = isinstance(top.get("backend"), str)
    _check_nodes(source, ["main"] if is_flat else _nodes(top), is_flat=is_flat)
    return source


def _check_nodes(source: dict[str, Any], nodes: Sequence[str], *, is_flat: bool) -> None:
    """Refuse settings of a node that the configuration does not have, unless they make it one.

    Raises:
        WrongArgument: There is no such node.
    """
    for name, table in source.items():
        unknown = isinstance(table, dict) and name not in (*nodes, *_NO_NODES)
        if unknown and nodes and "backend" not in table:
            if is_flat and not nearest(name, nodes):  # an option that takes a table
                continue
            raise WrongArgument(f"--set: there is no node {name!r}. {among(name, nodes)}")


def _nodes(top: dict[str, Any]) -> list[str]:
    return [key for key, part in top.items() if isinstance(part, dict) and key not in _NO_NODES]


def _top_level(path: Path, paths: set[Path]) -> dict[str, Any]:
    """Return the keys of a file and of the files that it extends, at the top and in tables, as far as these can be read."""
    try:
        tables = headrace.plugins.tables_of(path)
        path = path.resolve()  # what it extends is relative to the file, not to a link to it
        if path in paths or not (tables or path.is_file()):  # reading a pipe might never end
            return {}
        paths.add(path)
        own: dict[str, Any] = tomllib.loads(read_text(path)) if tables is None else tables
    except (ValueError, OSError, RuntimeError, HeadraceError):  # links may lead to each other
        # The error is reported when the configuration is loaded, which reads the file again.
        return {}
    bases = own.get("extends", [])
    top_level: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else []:
        base_path = path.parent / _in_home(_PLACEHOLDER.sub(_variable, str(base)))
        top_level = _laid_over(top_level, _top_level(base_path, paths))
    return _laid_over(top_level, own)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge tables key by key, as ``extends`` does."""
    tables = {
        key: {**below[key], **part}
        for key, part in above.items()
        if isinstance(part, dict) and isinstance(below.get(key), dict)
    }
    return {**below, **above, **tables}


def _in_home(path: str | Path) -> Path:
    return Path(os.path.expanduser(path))  # noqa: PTH111 - the method of Path raises where it is unknown


def _variable(placeholder: re.Match[str]) -> str:
    """Return the value of a placeholder; that one has none is reported when the configuration is loaded."""
    name, default = placeholder.groups(default="")
    return os.environ.get(name) or default if name else "${"


def _of_node(parts: list[str], top: dict[str, Any]) -> list[str]:
    """Return the path of a key in a configuration with these keys at the top.

    A key of the only node is at the top if ``backend`` is there (the node is then called ``main``), otherwise it is
    in the one table that is a node. A key of the whole pipeline is where the configuration has it.
    """
    single, nodes = isinstance(top.get("backend"), str), _nodes(top)
    if len(parts) > 1:
        return parts[1:] if single and parts[0] == "main" else parts
    whole = (*_NO_NODES, *headrace.PipelineConfig.key_schemas()["global"])
    if parts[0] not in whole and (single or len(nodes) == 1):
        return parts if single else [*nodes, *parts]
    shared = top.get("global")
    return ["global", *parts] if isinstance(shared, dict) and parts[0] in shared else parts


@contextlib.contextmanager
def hinting_at_a_file(name: str) -> Iterator[None]:
    """Add to a ConfigError that CONFIG is no file, or one for another command.

    What looks like an expression, or can be read as one, may be no file.
    """
    try:
        yield
    except ConfigError as error:
        own = [p.code for p in error.problems if p.path in {"main.backend", "expression"}]
        unread = {*own} & {"syntax", "unknown_backend"}
        if unread and not is_file(name) and not set(name) & set("[]()"):
            if os.path.isdir(name):  # noqa: PTH112 - false for a long text
                headrace.PipelineConfig.load(name)  # says what a folder may be
            kind = "no file"
            files = [path.name for path in Path().glob("*.toml")]
            near = difflib.get_close_matches(name, files, n=1, cutoff=0.7)
            if os.path.isfile(f"{name}.toml"):  # noqa: PTH113 - false for a long text
                near = [f"{name}.toml"]
            kind += f" (did you mean {near[0]!r}?)" if near else ""
            print_message(f"{name!r} is {kind}, so it was read as an expression")
        others = [problem for problem in error.problems if problem.path in _OF_COMMANDS]
        if others and is_file(name):
            text = "[{0}] is a table of files for `{1} {2}`"
            error.problems = tuple(
                replace(
                    problem,
                    message=text.format(problem.path, _OF_COMMANDS[str(problem.path)], name),
                    hint=None,
                )
                for problem in others
            )
        raise


def _parts(key: str) -> list[str]:
    """Split ``node.key``; the name before a ``::`` may contain dots itself, and quotes may be written as in TOML."""
    if {*"\"'"} & {*key}:
        with contextlib.suppress(tomllib.TOMLDecodeError):
            parts, tables = [], tomllib.loads(f"{key} = 0")
            while isinstance(tables, dict):
                ((part, tables),) = tables.items()
                parts.append(part)
            return parts
    return key.split(".", 1) if "::" in key else key.split(".")


def _value(text: str) -> Any:
    try:
        tables = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = tables["value"]
    dated = isinstance(value, (dt.date, dt.time))
    return text if dated or len(tables) > 1 else value


def _set(source: dict[str, Any], parts: list[str], value: Any, text: str) -> None:
    table = source
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise WrongArgument(f"--set {text}: {part!r} has a value already, and is no table")
    table[parts[-1]] = value
