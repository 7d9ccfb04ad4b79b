"""Reading a configuration as it is written: its files, ``extends`` and ``import``."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace._language.config.problems import (
    Environment,
    Problems,
    format_value,
    key_place,
    quotient,
)
from headrace._language.contract.addresses import origin_of, places
from headrace._language.contract.missing import nearest_file
from headrace._language.contract.options import TextWithBase, in_home, map_leaves, path_as_text
from headrace._language.contract.texts import read_text
from headrace._language.expression.nesting import MAX_DEPTH, TOO_DEEP
from headrace._language.expression.templates import substitute_text
from headrace._language.registry.files import located, tables_of, what_is_read
from headrace.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_WHERE = "A relative path starts from the working directory."
_NO_EXPRESSION = "A text is always a path; an expression goes under the key 'backend' of a dict."
_SCOPED = re.compile(r"\s*([\w.:-]+::[\w-]+)\s*=")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True)
class Written:
    """A value as it is written, and where.

    Attributes:
        value: The value, placeholders not yet replaced.
        base: The folder from which relative paths in it start.
        file: The file that holds it, None for a dict.
        path: The keys that lead to it there, where a plugin has put it under other ones.
    """

    value: Any
    base: Path
    file: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class Table(Written):
    """A table as it is written, perhaps in several files.

    Attributes:
        value: The table as a dict. A text from another folder than ``base`` carries its own folder.
        base, file: The folder and path of the last file that has the table.
        keys: The values of the table by key, each with its place.
    """

    keys: dict[str, Written] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: dict[str, Written], base: Path, file: str | None) -> Table:
        """Make the table of these keys."""
        value = {
            key: part.value if part.base == base else _with_base(part.value, part.base)
            for key, part in keys.items()
        }
        return cls(value, base, file, keys=keys)

    @classmethod
    def read(cls, values: dict[str, Any], base: Path, file: str | None) -> Table:
        """Make a table that one file, or one dict, holds."""
        keys: dict[str, Written] = {}
        for key, value in values.items():
            make = cls.read if isinstance(value, dict) else Written
            keys[key] = make(value, base, file)
        return cls.of(keys, base, file)


@dataclass
class Document:
    """A configuration merged from all its files.

    Attributes:
        top: The top-level keys.
        imports: By item of ``import`` and the folder from which a relative path starts, the file
            that holds it, None for a dict, those of extended files first.
        file: The file that the user named, None for a dict.
        environ: The environment, as the configuration reads it.
    """

    top: dict[str, Written] = field(default_factory=dict)
    imports: dict[tuple[str, Path], str | None] = field(default_factory=dict)
    file: str | None = None
    environ: Environment = field(default_factory=Environment)


def read_document(
    source: str | os.PathLike[str] | Mapping[str, Any], base: str | os.PathLike[str] | None = None
) -> Document:
    """Read a dict or a file and all that it extends.

    Args:
        source: The dict, or the path: of a TOML file, or of what a plugin reads.
        base: The folder from which relative paths in a dict start. None for the working directory.

    Raises:
        ConfigError: Files cannot be read or are no TOML, or ``extends`` and ``import`` are wrong.
            It names all of these problems.
        TypeError: ``source`` is neither a path nor a mapping, or a file is given a ``base``.
    """
    reader = _Reader()
    if isinstance(source, Mapping):
        folder = in_home(base or "")
        with suppress(OSError):  # the working directory is gone, as of a service that is replaced
            folder = Path.cwd() / folder
        document = reader.tables(source, folder, None, ())
    elif base is not None:
        raise TypeError("base is for a dict: paths in a file are relative to that file")
    elif isinstance(source, (str, os.PathLike)):
        document = reader.file(in_home(located(source)), (), {})
    else:
        got = type(source).__name__
        raise TypeError(f"a configuration is a dict, a path or a PipelineConfig, got {got}")
    reader.problems.raise_if_any()
    return document


class _Reader:
    """Reads a source and all that it extends; ``problems`` takes what is wrong."""

    def __init__(self) -> None:
        self.problems = Problems()
        self._read: dict[tuple[Path, tuple[str, ...]], Document] = {}

    def file(
        self, path: Path, stack: tuple[Path, ...], by: dict[str, Any], ignore: tuple[str, ...] = ()
    ) -> Document:
        """Read one file, named at the place ``by`` and extended by the files of ``stack``."""
        try:
            resolved = path.resolve()
            if resolved in stack:
                shown = " extends ".join(map(str, [*stack[stack.index(resolved) :], resolved]))
                message = f"files that extend each other in a cycle: {shown}"
                return self._refuse("extends_cycle", message, None, by)
            if (resolved, ignore) in self._read:
                return self._read[resolved, ignore]
            if len(stack) > MAX_DEPTH:
                message = f"more than {MAX_DEPTH} files that extend each other"
                return self._refuse("nesting", message, None, by)
            tables, base = self._tables_at(
                path, ignore
            )  # a link such as /dev/stdin may resolve to no path
        except FileNotFoundError:
            hint = None if path.is_absolute() else _WHERE
            hint = hint if path.suffix == ".toml" else _NO_EXPRESSION
            hint = what_is_read(path) if path.match("*.py:*") else hint
            hint = "A path is relative to the file that extends it." if by else hint
            by = {**by, "suggestion": nearest_file(path)}
            return self._refuse("no_file", f"no such file: {str(path)!r}", hint, by)
        except (OSError, ValueError, RuntimeError) as error:
            return self._refuse("unreadable", *_why(path, error), by)
        if tables is not None:  # kept, since other files may extend this one as well
            document = self.tables(tables, base, str(path), (*stack, resolved))
            self._read[resolved, ignore] = document
        return self._read.get((resolved, ignore), Document())

    def _tables_at(self, path: Path, ignore: tuple[str, ...]) -> tuple[dict[str, Any] | None, Path]:
        """Read a TOML file, or what a plugin reads.

        Return its tables and the folder where relative paths start.
        """
        try:
            tables = None if path.suffix == ".toml" else tables_of(path, ignore)
        except ConfigError as error:
            self.problems.add_all(error.problems, file=str(path))
            return None, path
        if tables is None:
            fetched = places and origin_of(path)
            folder = path.parent if fetched else path.resolve().parent
            return self._parse(_text_of(path), str(path)), folder
        path = path.absolute()  # by its name, not by that of a file to which it links
        return tables, path if path.is_dir() else path.parent

    def _refuse(self, code: str, message: str, hint: str | None, by: dict[str, Any]) -> Document:
        """Report a file that cannot be read, at the place where it is named."""
        self.problems.add(code, message, **by, hint=hint)
        return Document()

    def _parse(self, text: str, file: str) -> dict[str, Any] | None:
        try:
            tables: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            problem = _toml_problem(str(error), text)
            if problem.get("hint") is None and not file.endswith(".toml"):
                problem["hint"] = what_is_read(Path(file))
            self.problems.add("toml", file=file, **problem)
        except ValueError as error:  # an integer has more digits than the interpreter converts
            self.problems.add("number", f"this is no TOML: {error}", file=file)
        except RecursionError:
            self.problems.add("nesting", TOO_DEEP, file=file)
        else:
            return tables
        return None

    def tables(
        self, tables: Mapping[str, Any], base: Path, file: str | None, stack: tuple[Path, ...]
    ) -> Document:
        """Read the tables of one file or dict, after the files that it extends."""
        document, before = Document(), len(self.problems)
        try:
            copied = self._copy(tables, None, file, 0)
        except RecursionError:
            self.problems.add("nesting", TOO_DEEP, file=file)
            return document
        if len(self.problems) > before:
            return document
        if "ignore" in copied and "extends" not in copied:
            hint = "It names what the reader of an extended file or folder shall not look at."
            place = key_place(file, "ignore", "ignore", copied["ignore"], at_key=True)
            self.problems.add("key", "ignore stands beside extends", hint=hint, **place)
        ignore = tuple(self._texts(copied, "ignore", file))
        for parent in self._texts(copied, "extends", file):
            place = key_place(file, "extends", "extends", parent)
            try:
                extended = self.file(base / in_home(located(parent)), stack, place, ignore)
            except ConfigError as error:
                self.problems.add_all(error.problems, **place)
                continue
            document.top = _merge(document.top, extended.top)
            document.imports |= extended.imports
        document.imports |= {(item, base): file for item in self._texts(copied, "import", file)}
        document.top = _merge(document.top, Table.read(copied, base, file).keys)
        document.file, document.environ = file, self.problems.environ
        return document

    def _copy(self, part: Any, path: str | None, file: str | None, depth: int) -> Any:
        """Copy a part of a source, which may hold anything, even itself.

        Report keys that are no texts.
        """
        if depth > MAX_DEPTH + 1:
            raise RecursionError
        if isinstance(part, (list, tuple)):
            return [self._copy(item, path, file, depth + 1) for item in part]
        if isinstance(part, str):
            return str.__str__(part)
        if not isinstance(part, (dict, Mapping)):
            return part
        copy = {}
        for key, value in part.items():
            if isinstance(key, str):
                at = f"{path}.{key}" if path else key
                copy[str.__str__(key)] = self._copy(value, at, file, depth + 1)
            else:
                message = f"keys are texts, got {format_value(key)}"
                self.problems.add("key", message, file=file, path=path)
        return copy

    def _texts(self, table: dict[str, Any], key: str, file: str | None) -> list[str]:
        """Take the value of a key out of ``own``: a list of texts, or a single text."""
        value = table.pop(key, None)
        if value is None:
            return []
        place = key_place(file, key, key, value)
        items = [*map(path_as_text, value if isinstance(value, (list, tuple)) else [value])]
        if not all(isinstance(item, str) for item in items):
            hint = f'Write {key} = ["..."].'
            self.problems.add("type", "expected a text or a list of texts", hint=hint, **place)
            return []
        texts = []
        for item in map(str, items):
            try:
                texts.append(substitute_text(item, self.problems.environ))
            except ConfigError as error:
                self.problems.add_all(error.problems, file=file, path=key)
        return texts


def _text_of(path: Path) -> str:
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe or a device might never end
        raise ValueError("it is a pipe or a device, not a TOML file")
    return read_text(path)


def _why(path: Path, error: Exception) -> tuple[str, str | None]:
    """Say why a file cannot be read, and what to do."""
    if isinstance(error, IsADirectoryError):
        return f"{str(path)!r} is a folder, not a TOML file", what_is_read(path)
    if isinstance(error.__cause__, UnicodeDecodeError) and path.suffix != ".toml":
        return f"cannot read {str(path)!r}: it is no text, so no TOML file", what_is_read(path)
    return f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}", None


def _toml_problem(message: str, text: str) -> dict[str, Any]:
    """Make the problem of a text that is no TOML, at the place that the parser names."""
    place = _TOML_PLACE.search(message)
    if place is None:
        return {"message": f"this is no TOML: {message}"}
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    line = int(place[1] or len(lines))
    column = int(place[2] or len(lines[-1]) + 1)
    offset = sum(len(before) + 1 for before in lines[: line - 1]) + column - 1
    hint = quotient(lines[line - 1].partition("=")[2].partition("#")[0])
    if scoped := _SCOPED.match(lines[line - 1]):
        hint = f'A key with a scope stands in quotes: "{scoped[1]}" = ...'
    elif message.startswith("Invalid value") and place[1]:
        hint = 'A text stands in quotes: "..."; true and false are lower case.'
    elif message.startswith("Unescaped '\\'"):
        quoted = "stands in single quotes, in TOML and in an expression: 'C:\\folder\\file'"
        hint = f"A path with \\ {quoted}"
    elif text.lstrip()[:1] in ("{", "[") and '": ' in text:
        hint = "JSON? Write it as TOML, or give headrace.pipe the dict that json.load returns."
    elif lines[line - 1][column - 1 :].startswith(":"):
        hint = "YAML? Write key = value, or give headrace.pipe the dict of yaml.safe_load."
    message = message.replace(place[0], "" if place[1] else ", the text ends here")
    message = f"this is no TOML: line {line}, column {column}: {message}"
    where = {"line": line, "column": column}
    return {"message": message, "span": (offset, offset + 1), "text": text, "hint": hint, **where}


def _merge(known: dict[str, Written], new: dict[str, Written]) -> dict[str, Written]:
    """Merge new keys into known ones, table by table and key by key; the new value wins."""
    merged = dict(known)
    for key, part in new.items():
        below = merged.get(key)
        if isinstance(part, Table) and isinstance(below, Table):
            part = Table.of(_merge(below.keys, part.keys), part.base, part.file)
        merged[key] = part
    return merged


def _with_base(value: Any, base: Path) -> Any:
    """Give every text of a value the folder in which it was written, unless it has one."""
    return map_leaves(value, lambda part: TextWithBase(part, base) if type(part) is str else part)
