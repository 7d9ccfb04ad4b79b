"""``headrace plugins info``: shows a plugin, or a backend with its options."""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import PluginError
from headrace_cli.console import print_data
from headrace_cli.installed.diagnosis import examined
from headrace_cli.installed.findings import NOUNS
from headrace_cli.names import all_names, all_plugins, backends_named, plugins_named, unknown
from headrace_cli.printing import as_json, print_json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from headrace import Backend
    from headrace.plugins import Plugin

_LIMITS = {
    "gt": ">",
    "ge": ">=",
    "lt": "<",
    "le": "<=",
    "multiple_of": "a multiple of",
    "min_length": "length >=",
    "max_length": "length <=",
}


def show_info(name: str, *, json: bool) -> None:
    """Show a plugin, a distribution or a backend by name.

    For the name of another offer of a plugin (a policy, a probe, ...) the plugin is shown.

    Raises:
        ConfigError: The name is unknown.
    """
    plugins = plugins_named(name)
    offered = _offered()
    pairs = [(name, plugin) for plugin in plugins for name in plugin.backends]
    if not plugins:
        pairs = backends_named(name)
    if not plugins and not pairs:
        plugins = offered.get(name, [])
    if not plugins and not pairs:
        raise unknown(name, [*all_names(), *offered])
    backends = [_backend(name, plugin) for name, plugin in pairs]
    rows = [plugin.to_dict() for plugin in examined(plugins)[1]]
    if json:
        print_json({"plugins": rows, "backends": backends})
        return
    for row in rows:
        _print_plugin(row, backends)
    for backend in [] if plugins else backends:
        _print_backend(backend)


def _offered() -> dict[str, list[Plugin]]:
    """Return the plugins that offer each name of a policy, probe, command or the like."""
    owners: dict[str, list[Plugin]] = {}
    for plugin in all_plugins():
        for name in {name for table in plugin.offers.values() for name in table}:
            owners.setdefault(name, []).append(plugin)
            owners.setdefault(f"{plugin.plugin}:{name}", []).append(plugin)
    return owners


def _backend(name: str, plugin: Plugin) -> dict[str, Any]:
    """Describe a backend, and import it only if its plugin can be used."""
    about: dict[str, Any] = {
        "name": name,
        "plugin": plugin.plugin,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "path": plugin.backends[name],
        "error": None,
    }
    if plugin.state in ("disabled", "incompatible"):
        return {**about, "error": f"not imported: {plugin.distribution} is {plugin.state}"}
    try:
        cls = plugin.backend(name)
    except PluginError as error:
        return {**about, "error": str(error)}
    return {
        **about,
        "doc": _doc(cls),
        "range": [cls.min, cls.max],
        "owns_thread": cls.owns_thread,
        "reads": _keys(cls.reads),
        "writes": _keys(cls.writes),
        "takes": cls.takes,
        "prefixes": list(cls.bracket.prefixes),
        "options": _options(cls),
    }


def _doc(cls: type[Backend]) -> str:
    """Return the docstring of a class or of a base of it, not that of `Backend`; empty where there is none."""
    bases = cls.__mro__[: cls.__mro__.index(headrace.Backend)]
    return next((inspect.cleandoc(base.__doc__) for base in bases if base.__doc__), "")


def _keys(names: tuple[str, ...] | type) -> list[str]:
    return list(names) if isinstance(names, tuple) else list(typing.get_type_hints(names))


def _options(cls: type[Backend]) -> list[dict[str, Any]]:
    return [
        {
            "name": field.alias or name,
            "type": _type_text(field.annotation) + _limits(field),
            "required": field.is_required(),
            "default": None if field.is_required() else field.get_default(),
            "description": field.description or "",
        }
        for name, field in cls.Options.model_fields.items()
    ]


def _limits(field: FieldInfo) -> str:
    limits = [
        f"{words} {getattr(bound, key)}"
        for bound in field.metadata
        for key, words in _LIMITS.items()
        if getattr(bound, key, None) is not None
    ]
    return f" ({', '.join(limits)})" if limits else ""


def _type_text(annotation: Any) -> str:
    """Return the name of a type in the words of configurations: "text", "list", ..."""
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


def _print_plugin(row: dict[str, Any], backends: list[dict[str, Any]]) -> None:
    requires = f", requires headrace {row['range']}" if row["range"] else ""
    print_data(f"{row['distribution']} {row['version']}: {row['state']}{requires}")
    for text in (row["reason"], row["remedy"]):
        if text is not None:
            print_data(f"  {text}")
    own = [b for b in backends if b["distribution"] == row["distribution"]]
    width = max((len(b["name"]) for b in own), default=0)
    for backend in own:
        first = backend["error"] or next(iter(backend["doc"].splitlines()), "")
        print_data(
            f"  {backend['name'].ljust(width)}  {first.splitlines()[0] if first else ''}".rstrip()
        )
    for kind, noun in NOUNS.items():
        for name, path in sorted(row["offers"][kind].items()):
            print_data(f"  {noun} {name}: {path}")


def _print_backend(backend: dict[str, Any]) -> None:
    print_data(f"{backend['name']}: {backend['distribution']} {backend['version']}".rstrip())
    if backend["error"] is not None:
        print_data(textwrap.indent(backend["error"], "  "))
        return
    least, most = backend["range"]
    print_data(
        f"  range   {least} to {'unbounded' if most is None else most}, before the node's keys"
    )
    print_data(f"  reads   {', '.join(backend['reads']) or '-'}")
    print_data(f"  writes  {', '.join(backend['writes']) or '-'}")
    if backend["owns_thread"]:
        print_data("  runs in a thread of its own")
    if backend["doc"]:
        print_data("\n" + textwrap.indent(backend["doc"], "  "))
    if backend["options"]:
        print_data("\n  Options:")
    for option in backend["options"]:
        default = "required" if option["required"] else f"default {_default(option['default'])}"
        print_data(f"    {option['name']}: {option['type']}, {default}")
        if option["description"]:
            print_data(f"        {option['description']}")


def _default(value: Any) -> str:
    return "none" if value is None else as_json(value)
