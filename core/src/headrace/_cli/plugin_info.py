"""``headrace plugins info``: what a plugin or a backend is and takes."""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from typing import TYPE_CHECKING, Any

import headrace
from headrace._cli.printing import as_json, shown
from headrace._cli.reporting import OK, say
from headrace._describe import plain
from headrace._doctor.findings import all_findings, listed
from headrace._doctor.offers import call_hooks
from headrace._registry import BackendSpec, PluginRecord, normalised_plugin, registry
from headrace._registry.catalogue import (
    CORE_BACKENDS,
    CORE_BATCH_POLICIES,
    CORE_DISPATCH_POLICIES,
)
from headrace._registry.hooks import HOOK_KINDS, given
from headrace.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from headrace import Backend

__all__ = ["all_plugins", "info"]

_LIMITS = {
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "multiple_of": "a multiple of",
    "min_length": "length >=",
    "max_length": "length <=",
}


def info(name: str, *, json: bool) -> int:
    """Show a plugin, a distribution or a backend by name; give the exit status.

    For the name of something else that a plugin offers, that plugin is shown.

    Raises:
        ConfigError: There is none of that name.
    """
    records = [r for r in all_plugins() if name in (r.distribution, r.plugin)]
    specs = registry.find(name)
    if not records and not specs:
        records = [r for r in all_plugins() if normalised_plugin(name) == r.plugin]
    offered = {} if records or specs else _offered()
    records += offered.get(name, [])
    if not records and not specs:
        known = [*registry.names(), *offered]
        for record in all_plugins():
            known += [record.distribution, record.plugin]
        raise ConfigError(registry.unknown(name, known))
    for record in records:
        specs += [
            BackendSpec(one, record.plugin, record.distribution, record.version, path)
            for one, path in sorted(record.backends.items())
        ]
    shut = {r.distribution: r.state for r in records if r.state in ("disabled", "incompatible")}
    backends = [_backend(spec, shut.get(spec.distribution)) for spec in specs]
    installed = [record for record in records if record.distribution != "headrace"]
    rows = listed(records, all_findings(installed, registry.plugins()))
    if json:
        say(as_json({"plugins": rows, "backends": backends}))
        return OK
    for row in rows:
        _say_plugin(row, backends)
    for backend in [] if records else backends:
        _say_backend(backend)
    return OK


def all_plugins() -> list[PluginRecord]:
    """Give the installed plugins, and core as if it were one."""
    core = PluginRecord(
        "headrace",
        "headrace",
        headrace.__version__,
        backends=dict(CORE_BACKENDS),
        answers={
            "headrace_batch_policies": [CORE_BATCH_POLICIES],
            "headrace_dispatch_policies": [CORE_DISPATCH_POLICIES],
        },
    )
    return [core, *registry.plugins()]


def _offered() -> dict[str, list[PluginRecord]]:
    """Give who offers each name that hooks give: definitions, policies, probes, commands."""
    records = all_plugins()
    call_hooks(records)
    found: dict[str, list[PluginRecord]] = {}
    for record in records:
        tables = [table for table in given(record).values() if isinstance(table, dict)]
        for name in {name for table in tables for name in table}:
            found.setdefault(name, []).append(record)
            found.setdefault(f"{record.plugin}:{name}", []).append(record)
    return found


def _backend(spec: BackendSpec, shut: str | None) -> dict[str, Any]:
    """Describe a backend; one of a plugin that is not to be used is not imported."""
    found: dict[str, Any] = {
        "name": spec.name,
        "plugin": spec.plugin,
        "distribution": spec.distribution,
        "version": spec.version,
        "path": spec.path,
        "error": None,
    }
    if shut is not None:
        return {**found, "error": f"not imported: {spec.distribution} is {shut}"}
    try:
        cls = spec.load()
    except PluginError as error:
        return {**found, "error": str(error)}
    return {
        **found,
        "doc": inspect.getdoc(cls) or "",
        "range": [cls.min, cls.max],
        "owns_thread": cls.owns_thread,
        "reads": _keys(cls.reads),
        "writes": _keys(cls.writes),
        "takes": plain(cls.takes),
        "prefixes": list(cls.prefixes),
        "options": _options(cls),
    }


def _keys(names: tuple[str, ...] | type) -> list[str]:
    return list(names) if isinstance(names, tuple) else list(typing.get_type_hints(names))


def _options(cls: type[Backend]) -> list[dict[str, Any]]:
    return [
        {
            "name": field.alias or name,
            "type": _type_text(field.annotation) + _limits(field),
            "required": field.is_required(),
            "default": None if field.is_required() else plain(field.get_default()),
            "description": field.description or "",
        }
        for name, field in cls.Options.model_fields.items()
    ]


def _limits(field: FieldInfo) -> str:
    told = [
        f"{words} {getattr(one, key)}"
        for one in field.metadata
        for key, words in _LIMITS.items()
        if getattr(one, key, None) is not None
    ]
    return f" ({', '.join(told)})" if told else ""


def _type_text(annotation: Any) -> str:
    """Give a type as a reader of a configuration thinks of it."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or annotation is type(None):
        return "none"
    if origin is typing.Literal:
        return " | ".join(as_json(part) for part in parts)
    if origin is typing.Annotated:
        return _type_text(parts[0])
    if origin is typing.Union or origin is types.UnionType:
        return " | ".join(_type_text(part) for part in parts)
    if origin is not None:
        inner = ", ".join("..." if part is Ellipsis else _type_text(part) for part in parts)
        return f"{getattr(origin, '__name__', origin)}[{inner}]"
    name = getattr(annotation, "__name__", str(annotation))
    return {"str": "text", "Path": "path", "Any": "anything"}.get(name, name)


def _say_plugin(row: dict[str, Any], backends: list[dict[str, Any]]) -> None:
    requires = f", requires headrace {row['range']}" if row["range"] else ""
    say(f"{row['distribution']} {row['version']}: {row['state']}{requires}")
    for text in (row["reason"], row["remedy"]):
        if text is not None:
            say(f"  {text}")
    own = [b for b in backends if b["distribution"] == row["distribution"]]
    width = max((len(b["name"]) for b in own), default=0)
    for backend in own:
        first = backend["error"] or next(iter(backend["doc"].splitlines()), "")
        say(f"  {backend['name'].ljust(width)}  {first.splitlines()[0] if first else ''}".rstrip())
    for hook, kind in HOOK_KINDS.items():
        gave = row["hooks"][hook.removeprefix("headrace_")]
        if isinstance(gave, str):
            say(f"  {kind}: {gave}")
        for name, path in sorted((gave if isinstance(gave, dict) else {}).items()):
            say(f"  {kind} {name}: {path}")


def _say_backend(backend: dict[str, Any]) -> None:
    say(f"{backend['name']}: {backend['distribution']} {backend['version']}".rstrip())
    if backend["error"] is not None:
        say(textwrap.indent(backend["error"], "  "))
        return
    least, most = backend["range"]
    say(f"  range   {least} to {'unbounded' if most is None else most}, before the node's keys")
    say(f"  reads   {', '.join(backend['reads']) or '-'}")
    say(f"  writes  {', '.join(backend['writes']) or '-'}")
    if backend["owns_thread"]:
        say("  runs in a thread of its own")
    if backend["doc"]:
        say("\n" + textwrap.indent(backend["doc"], "  "))
    if backend["options"]:
        say("\n  Options:")
    for option in backend["options"]:
        default = "required" if option["required"] else f"default {_default(option['default'])}"
        say(f"    {option['name']}: {option['type']}, {default}")
        if option["description"]:
            say(f"        {option['description']}")


def _default(value: Any) -> str:
    return "none" if value is None else as_json(value) if isinstance(value, str) else shown(value)
