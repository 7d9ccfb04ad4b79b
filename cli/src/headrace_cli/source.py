"""What stands in the place of CONFIG: a file or an expression, with what ``--set`` lays over it."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace_cli.console import WrongArgument, print_message

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def is_file(what: str) -> bool:
    """Tell whether CONFIG names a file; else it is an expression."""
    return what.endswith(".toml") or os.path.isfile(what)  # noqa: PTH113 - false for a long text


def source_of(what: str, settings: Sequence[str] = ()) -> str | dict[str, Any]:
    """Give what `headrace.pipe` reads: a path, or a dict with what was set.

    Args:
        what: A file or an expression.
        settings: Texts ``KEY=VALUE``, later ones win. The key is that of the only node, or
            ``NODE.KEY``, or ``global.KEY``; the value is read as TOML where it is some, else as text.
            Relative paths in it start from the working directory.

    Raises:
        WrongArgument: A text is no ``KEY=VALUE``, or sets a table and a value under one key.
    """
    if is_file(what) and not settings:
        return what
    source: dict[str, Any] = {"backend": what}
    if is_file(what):
        source = {"extends": [what.replace("$", "$$")]}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise WrongArgument(f"--set: expected KEY=VALUE, got {text!r}")
        _set(source, _parts(key.strip()), _value(value.strip()), text)
    return source


@contextlib.contextmanager
def hinting_at_a_file(what: str) -> Iterator[None]:
    """Add to a ConfigError the message that CONFIG is no file, where it does not look like an expression."""
    try:
        yield
    except ConfigError:
        if not is_file(what) and not set(what) & set("[]()"):
            print_message(f"{what!r} is no file, so it was read as an expression")
        raise


def _parts(key: str) -> list[str]:
    """Split ``node.key``; what stands before ``::`` is a name, in which dots may stand."""
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
