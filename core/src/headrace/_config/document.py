"""Reading a configuration as written: files, ``extends`` and ``import``; not yet its meaning."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace._expression import substitute_text
from headrace.errors import ConfigError, Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Document", "Written", "plain_copy", "read_document"]


@dataclass(frozen=True)
class Written:
    """A value as written, and where.

    Attributes:
        value: The value, placeholders not yet replaced.
        base: The folder that relative paths in it start from.
        file: The file that holds it, None for a dict.
    """

    value: Any
    base: Path
    file: str | None = None


@dataclass
class Document:
    """A configuration merged from all its files.

    Attributes:
        top: Top-level keys: a `Written` per plain value, a dict of `Written` per table.
        imports: What ``import`` lists, base files first, each with the folder it is relative to.
        file: The file that was asked for, None for a dict.
    """

    top: dict[str, Written | dict[str, Written]] = field(default_factory=dict)
    imports: list[tuple[str, Path]] = field(default_factory=list)
    file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the merged configuration as plain data."""
        plain: dict[str, Any] = {"import": [item for item, _ in self.imports]}
        if not self.imports:
            del plain["import"]
        for key, value in self.top.items():
            if isinstance(value, Written):
                plain[key] = plain_copy(value.value)
            else:
                plain[key] = {k: plain_copy(w.value) for k, w in value.items()}
        return plain


def plain_copy(value: Any) -> Any:
    """Copy dicts and lists, keep everything else by identity: the caller's data never changes."""
    if isinstance(value, Mapping):
        return {key: plain_copy(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_copy(part) for part in value]
    return value


def read_document(source: str | os.PathLike[str] | Mapping[str, Any]) -> Document:
    """Read a dict or a TOML file and all that it extends.

    Raises:
        ConfigError: A file cannot be read or is no TOML, or ``extends`` and ``import`` are wrong.
        TypeError: ``source`` is neither a path nor a mapping.
    """
    if isinstance(source, Mapping):
        return _assemble(plain_copy(source), Path.cwd(), None, ())
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"a configuration is a dict, a path or a PipelineConfig, got {type(source).__name__}"
        )
    return _read_file(Path(source), (), None)


def _read_file(path: Path, stack: tuple[Path, ...], by: str | None) -> Document:
    resolved = path.resolve()
    if resolved in stack:
        chain = " extends ".join(str(p) for p in (*stack[stack.index(resolved) :], resolved))
        raise _error("extends_cycle", f"files that extend each other in a circle: {chain}", by)
    try:
        text = resolved.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        hint = "A text is always a path; an expression goes under the key 'backend' of a dict."
        raise _error("no_file", f"no such file: {str(path)!r}", by, hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _error("unreadable", f"cannot read {str(path)!r}: {error}", by) from error
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _error("toml", f"this is no TOML: {error}", str(path)) from error
    return _assemble(tables, resolved.parent, str(path), (*stack, resolved))


def _error(
    code: str, message: str, file: str | None, path: str | None = None, hint: str | None = None
) -> ConfigError:
    return ConfigError(Problem(code, message, file=file, path=path, hint=hint))


def _assemble(
    tables: dict[str, Any], base: Path, file: str | None, stack: tuple[Path, ...]
) -> Document:
    document = Document()
    _check_keys(tables, file)
    for parent in _texts(tables.pop("extends", []), "extends", file, one_may_stand_alone=True):
        _merge(document, _read_file(base / Path(parent).expanduser(), stack, file))
    document.imports += [(item, base) for item in _texts(tables.pop("import", []), "import", file)]
    own = Document(file=file)
    for key, value in tables.items():
        if isinstance(value, dict):
            own.top[key] = {k: Written(v, base, file) for k, v in value.items()}
        else:
            own.top[key] = Written(value, base, file)
    _merge(document, own)
    document.file = file
    return document


def _check_keys(tables: Mapping[Any, Any], file: str | None, path: str = "") -> None:
    for key, value in tables.items():
        if not isinstance(key, str):
            raise _error("key", f"keys are texts, got {key!r}", file, path or None)
        if isinstance(value, Mapping):
            _check_keys(value, file, f"{path}.{key}" if path else key)


def _texts(
    value: Any, key: str, file: str | None, *, one_may_stand_alone: bool = False
) -> list[str]:
    if isinstance(value, str) and one_may_stand_alone:
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _error("type", f"expected a list of texts, got {value!r}", file, key)
    try:
        return [substitute_text(item, os.environ) for item in value]
    except ConfigError as error:
        raise _error(error.problems[0].code, error.problems[0].message, file, key) from None


def _merge(into: Document, child: Document) -> None:
    """Lay ``child`` over ``into``: table by table, key by key, the child wins."""
    for key, value in child.top.items():
        known = into.top.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            for name, written in value.items():
                known[name] = _laid_over(known.get(name), written)
        else:
            into.top[key] = dict(value) if isinstance(value, dict) else value
    for item in child.imports:
        if item not in into.imports:
            into.imports.append(item)


def _laid_over(known: Written | None, new: Written) -> Written:
    if known is not None and isinstance(known.value, dict) and isinstance(new.value, dict):
        return Written(_deep(known.value, new.value), new.base, new.file)
    return new


def _deep(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(known)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _deep(merged[key], value)
        else:
            merged[key] = value
    return merged
