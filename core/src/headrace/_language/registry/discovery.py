"""The names that are known without importing a backend: those of core and of installed plugins.

A plugin is a distribution with entry points in one of our groups. Its backends, version and range are read
from metadata. Its hooks (`headrace.hookspecs`), which live in light modules, are called once. The state of a
plugin is one of:

``ok``
    It can be used, as far as its metadata and hooks tell.
``disabled``
    ``HEADRACE_PLUGINS`` does not allow it.
``incompatible``
    Its ``Requires-Dist: headrace...`` does not admit this version of core.
``broken``
    Its metadata cannot be read, or its hooks fail.
``missing_dependency``
    Its module with hooks imports a library that is not installed.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from headrace._texts import error_text
from headrace._version import __version__
from headrace.errors import MissingDependencyError, PluginError, PluginLoadError

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_BACKENDS, _HOOKS = _GROUPS = ("headrace.backends", "headrace.plugins")
_OURS = re.compile(r"\s*headrace\b(?![-_.]*\w)", re.IGNORECASE)
_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

TABLES = (
    *("batch_policies", "dispatch_policies", "probes", "commands", "node_keys"),
    *("rewriters", "readers", "fetchers", "apis"),
)
"""The hooks, without the ``headrace_`` in front."""


@dataclass(frozen=True)
class Plugin:
    """What is known of one installed plugin.

    Attributes:
        plugin: The qualifier in ``plugin:Name``: the distribution's normalised name without a
            leading ``headrace-``.
        distribution: Name of the distribution, as installed.
        version: Its version, ``"unknown"`` where the metadata do not tell.
        range: The versions of core that it requires, as ``>=0.1,<0.2``. Empty when it states none.
        backends: The import paths of its backends, by name.
        hooks: The answers of its hooks, by their short names: ``batch_policies``,
            ``dispatch_policies``, ``probes``, ``commands``, ``node_keys``, ``rewriters``, ``readers``,
            ``fetchers``, ``apis``, each a table.
        state: ``"ok"``, else ``"disabled"``, ``"incompatible"``, ``"broken"`` or
            ``"missing_dependency"``. Conflicts between plugins, and libraries that only an instance
            needs, are found by `headrace plugins list --check`.
        reason: Why it is not ok, in a sentence. None when it is.
        remedy: What to do about that, or None.
        usable: Whether a configuration may use its names.
        requires: All its requirements, as in ``Requires-Dist``.
    """

    plugin: str
    distribution: str
    version: str
    range: str
    backends: Mapping[str, str]
    hooks: Mapping[str, Any]
    state: str = "ok"
    reason: str | None = None
    remedy: str | None = None
    usable: bool = True
    requires: tuple[str, ...] = ()

    def backend(self, name: str) -> type[Any]:
        """Import one of its `backends`.

        Raises:
            KeyError: The plugin has no backend of that name.
            PluginLoadError: The module cannot be imported, or has no such class.
            MissingDependencyError: The module needs a library that is not installed.
            PluginError: The class is no backend.
        """
        return load_backend(name, self.backends[name], self.distribution)

    def load(self, path: str) -> Any:
        """Import the object that an entry of `hooks` names: ``"package.module:Name"``.

        Raises:
            PluginLoadError: The object cannot be imported.
            MissingDependencyError: Its module needs a library that is not installed.
        """
        return load(path, self.distribution)

    def to_dict(self) -> dict[str, Any]:
        """Return the plugin as plain data for JSON. ``headrace plugins list --json`` adds its certificate."""
        return asdict(self)

    def _as_refused(self, state: str, reason: str, remedy: str = "") -> Plugin:
        """Give the plugin as one that cannot be used. The default ``remedy`` is to install it again."""
        remedy = remedy or f"Install it again: pip install --force-reinstall {self.distribution}"
        line = " ".join(reason.split())  # a wrong requirement is told with a line of its own
        return replace(self, state=state, reason=line, remedy=remedy, usable=False)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def qualifier(distribution: str) -> str:
    """Return the qualifier of a distribution: for ``Headrace_CV`` it is the ``cv`` of ``cv:ResizeMat``."""
    name = _normal(distribution)
    return name.removeprefix("headrace-") if name != "headrace" else name


def discover() -> list[Plugin]:
    """List all installed plugins, ordered by name, with their states.

    Of a distribution that is no plugin only ``entry_points.txt`` is read, of a plugin the head of its
    metadata as well.
    """
    from importlib.metadata import distributions

    plugins: dict[str, Plugin] = {}
    for dist in distributions():
        try:
            points = [point for point in dist.entry_points if point.group in _GROUPS]
            # Entry points that name words of core are for other tools: core has its own table.
            points = [point for point in points if not point.value.startswith("headrace.")]
            plugin = _plugin(points, dist) if points else None
        except Exception as error:  # noqa: BLE001 - its metadata may be no text, or hold no entry points
            plugin = _unreadable(dist, error)
        if plugin is not None:  # the first distribution of a name on the path hides others
            plugins.setdefault(plugin.plugin, plugin)
    return sorted(plugins.values(), key=attrgetter("distribution"))


def _unreadable(dist: Distribution, error: Exception) -> Plugin | None:
    """Return a plugin whose entry points cannot be read; None where nothing says that it is one."""
    with suppress(Exception):
        plugin = _read_metadata(Plugin("", "", "unknown", "", {}, _hooks_of(())), dist)
        if any(map(_OURS.match, plugin.requires)):
            return plugin._as_refused("broken", f"its metadata cannot be read: {error}")
    return None


def _plugin(points: list[EntryPoint], dist: Distribution) -> Plugin:
    """Read the metadata of one distribution, and call its hooks if it can be used."""
    # An entry point may have blanks and an extra: ``odd : Odd [gpu]`` is ``odd:Odd``.
    paths = [(point, "".join(point.value.partition("[")[0].split())) for point in points]
    name = paths[0][1].partition(":")[0].partition(".")[0]  # until the metadata tell the true name
    offered = [(point.name, path) for point, path in paths if point.group == _BACKENDS]
    backends = dict(offered)
    plugin = Plugin(qualifier(name), name, "unknown", "", backends, _hooks_of(()))
    try:
        plugin = _read_metadata(plugin, dist)
        plugin = _check_version(plugin)
        for name, path in offered:
            _add(backends, "backend", name, path)
    except Exception as error:  # noqa: BLE001 - one plugin's bad metadata must not stop the others
        plugin = plugin._as_refused("broken", f"its metadata cannot be used: {error}")
    if (allowed := os.environ.get("HEADRACE_PLUGINS")) is not None:
        plugin = _if_allowed(plugin, allowed)
    modules = dict.fromkeys(path for point, path in paths if point.group == _HOOKS)
    try:
        return replace(plugin, hooks=_hooks_of(modules)) if plugin.usable else plugin
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - nor must one plugin's bad hooks
        reason = f"its hooks failed: {error_text(error)}"
        lacking = [library_missing(error, path) for path in modules]
        if not all(lacking):
            return plugin._as_refused("broken", reason)
        remedy = f"Install {lacking[0]!r}, or install {plugin.distribution} again."
        return plugin._as_refused("missing_dependency", reason, remedy)


def _add(table: dict[str, str], noun: str, name: str, path: str) -> None:
    if table.setdefault(name, path) != path:
        raise ValueError(f"it offers the {noun} {name!r} twice")


def _read_metadata(plugin: Plugin, dist: Distribution) -> Plugin:
    """Read name, version and requirements, but not the description after them, which may be long."""
    from email.parser import HeaderParser

    names = ("METADATA", "PKG-INFO", "")
    text = next(filter(None, map(dist.read_text, names)), "")
    head = HeaderParser().parsestr(re.split(r"\r?\n\r?\n", text, maxsplit=1)[0])
    name = head["Name"] or plugin.distribution
    return replace(
        plugin,
        plugin=qualifier(name),
        distribution=name,
        version=head["Version"] or plugin.version,
        requires=tuple(head.get_all("Requires-Dist") or dist.requires or ()),
    )


def _check_version(plugin: Plugin) -> Plugin:
    """Compare the version of core that the plugin requires with the one that runs."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    fits = Requirement("headrace").specifier  # of all of them together
    for wanted in map(Requirement, filter(_OURS.match, plugin.requires)):
        here = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if here and canonicalize_name(wanted.name) == "headrace":
            fits &= wanted.specifier
    plugin = replace(plugin, range=",".join(sorted({*map(str, fits)}, reverse=True)))
    if not fits.contains(__version__, prereleases=True):
        reason = f"it requires headrace {plugin.range}, this is {__version__}"
        remedy = f"Install versions that fit: pip install --upgrade {plugin.distribution} headrace"
        return plugin._as_refused("incompatible", reason, remedy)
    return plugin


def _if_allowed(plugin: Plugin, allowed: str) -> Plugin:
    """Apply ``HEADRACE_PLUGINS``: ``cv,ort`` allows only these, ``-torch`` denies it, empty denies all."""
    words = [word.strip() for word in allowed.split(",") if word.strip()]
    denied = {_normal(word[1:].strip()) for word in words if word.startswith("-")}
    only = {_normal(word) for word in words if not word.startswith("-")}
    name, names = plugin.plugin, {plugin.plugin, _normal(plugin.distribution)}
    if not names & denied and (names & only or (denied and not only)):
        return plugin
    remedy = f"Add {name!r} to HEADRACE_PLUGINS, or unset it."
    if names & denied:
        remedy = f"Take '-{name}' out of HEADRACE_PLUGINS."
    return plugin._as_refused("disabled", f"HEADRACE_PLUGINS={allowed} does not allow it", remedy)


def _hooks_of(modules: Iterable[str]) -> dict[str, Any]:
    """Call every hook of some modules; give the answers by the short names of the hooks."""
    hooks: dict[str, Any] = {name: {} for name in TABLES}
    known = {f"headrace_{name}": name for name in hooks}
    for path in modules:
        for attribute, function in [*vars(import_path(path)).items()]:  # a hook may import more
            name, marked = (
                known.get(attribute),
                "headrace_impl" in getattr(function, "__dict__", ()),
            )
            if marked != (name is not None):
                wrong = "is no hook" if marked else "has no marker @hookimpl"
                raise TypeError(f"{attribute} {wrong}, so nobody would call it")
            if name is None or (answer := function()) is None:
                continue
            if not _is_right(name, answer):
                raise TypeError(f"{attribute}() gave {answer!r}")
            for key, text in answer.items():
                _add(hooks[name], name, key, text)
    return hooks


def _is_right(hook: str, answer: Any) -> bool:
    """Tell whether the answer of a hook has the right type."""
    if not isinstance(answer, dict):
        return False
    texts = all(isinstance(text, str) for entry in answer.items() for text in entry)
    return texts and (hook != "commands" or all(map(_COMMAND.fullmatch, answer)))


# Importing the objects that a plugin names.


def import_path(path: str) -> Any:
    """Import ``module`` or ``module:attribute``."""
    module, _, names = path.partition(":")
    __import__(module)
    return attrgetter(names)(sys.modules[module]) if names else sys.modules[module]


def library_missing(error: BaseException, path: str) -> str | None:
    """Give the missing module when an import fails for lack of a module other than its own."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = path.partition(":")[0]
    return None if module == error.name or module.startswith(f"{error.name}.") else error.name


def load(path: str, distribution: str, noun: str = "") -> Any:
    """Import ``module:attribute`` of a plugin.

    Args:
        path: The import path.
        distribution: The distribution of the plugin.
        noun: A description for errors: ``the backend 'ResizeMat' of headrace-cv``.

    Raises:
        PluginLoadError: The object cannot be imported.
        MissingDependencyError: Its module needs a library that is not installed.
    """
    about = f"{noun} cannot be imported from {path!r}" if noun else f"cannot import {path!r}"
    try:
        return import_path(path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, say, or what pytest skips with
        kind: type[PluginError] = PluginLoadError
        message = f"{about}: {error_text(error)}"
        hint = "See `headrace plugins list --check`."
        if missing := library_missing(error, path):
            kind, message = MissingDependencyError, f"{about}: {error}"
            hint = f"Install {missing!r}, or install {distribution} again."
        raise kind(message, distribution=distribution, hint=hint) from error


def load_backend(name: str, path: str, distribution: str, cls: Any = None) -> type[Any]:
    """Import the class of a backend, unless it was registered; see `Plugin.backend`."""
    from headrace._language.registry.backends import as_backend

    cls = cls or load(path, distribution, f"the backend {name!r} of {distribution}")
    try:
        return as_backend(cls)
    except PluginError as error:
        error.what = f"{name!r} of {distribution}: {error.what}"
        raise


# The names of core, and well-known names of other distributions.


def _table(name: str) -> dict[str, Any]:
    """Read a table that a script of the same name has made."""
    table: dict[str, Any] = json.loads(pkgutil.get_data(__name__, f"{name}.json") or "{}")
    return table


CORE_BACKENDS: dict[str, str] = _table("words_of_core")
"""The import paths of core's backends, by name."""

_HOOKS_OF_CORE = _hooks_of(())
_HOOKS_OF_CORE["batch_policies"] = {"greedy": "headrace.policies:Greedy"}
_HOOKS_OF_CORE["dispatch_policies"] = {"best_fit": "headrace.policies:BestFit"}
CORE = Plugin("headrace", "headrace", __version__, "", CORE_BACKENDS, _HOOKS_OF_CORE)
"""Core itself, as if it were a plugin."""

KNOWN_ELSEWHERE, KNOWN_PROBES, KNOWN_POLICIES, KNOWN_READERS, REPLACED, SYNONYMS = map(
    _table("names_elsewhere").__getitem__,
    ("backends", "probes", "policies", "readers", "replaced", "synonyms"),
)
"""The distribution to install for each backend, probe, policy and kind of file of the plugins of Headrace's repository, by name. What to
write for each name of torchpipe that means nothing here. The backend that a name of the field, in small letters, means.
"""


def how_to_install(distribution: str) -> str:
    """Say how to install a distribution of `KNOWN_ELSEWHERE`, also from a clone of the repository."""
    return (
        f"Install it: pip install {distribution}, or in a clone of Headrace, after ./dev wheels: "
        f"pip install --find-links dist {distribution}"
    )
