"""The names that are known without importing a backend: those of core and of installed plugins.

A plugin is a distribution with entry points in one of our groups. The names that it offers there,
its version and its range are read from metadata: nothing of it is imported. What its hooks offer is
asked for later, by `call_hooks`. The state of a plugin is one of:

``ok``
    It can be used, as far as its metadata tell, and its hooks where they were called.
``disabled``
    ``HEADRACE_PLUGINS`` does not allow it.
``incompatible``
    Its ``Requires-Dist: headrace...`` does not admit this version of core.
``broken``
    Its metadata cannot be read, or contradict themselves, or its hooks fail.
``missing_dependency``
    Its module with hooks imports a library that is not installed.

A plugin whose hooks fail loses what they offer. The names in its metadata stay usable.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from headrace._texts import error_text
from headrace._version import __version__
from headrace.errors import MissingDependencyError, PluginError, PluginLoadError, among

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_OURS = re.compile(r"\s*headrace\b(?![-_.]*\w)", re.IGNORECASE)

GROUPS = ("backends", "node_keys", "rewriters", "readers", "fetchers", "records")
"""What plugins offer by entry points: the groups, without the ``headrace.`` in front."""

HOOKS = ("batch_policies", "dispatch_policies", "probes", "commands", "apis")
"""What plugins offer by hooks: the functions, without the ``headrace_`` in front."""

_GROUP_NAMES = {f"headrace.{group}": group for group in (*GROUPS, "plugins")}
_FUNCTIONS = {f"headrace_{hook}": hook for hook in HOOKS}
_NO_OFFERS: dict[str, Mapping[str, str]] = {kind: {} for kind in (*GROUPS[1:], *HOOKS)}


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
        offers: The import paths of what else it offers, by kind and name. ``node_keys``,
            ``rewriters``, ``readers``, ``fetchers`` and ``records`` are entry points,
            ``batch_policies``, ``dispatch_policies``, ``probes``, ``commands`` and ``apis`` the
            answers of its hooks.
        hook_modules: The modules of its hooks.
        state: ``"ok"``, else ``"disabled"``, ``"incompatible"``, ``"broken"`` or
            ``"missing_dependency"``. Conflicts between plugins, and libraries that only an instance
            needs, are found by `headrace plugins list --check`.
        reason: Why it is not ok, in a sentence. None when it is.
        remedy: What to do about that, or None.
        usable: Whether a configuration may use the names in its metadata.
        requires: All its requirements, as in ``Requires-Dist``.
    """

    plugin: str
    distribution: str
    version: str
    range: str
    backends: Mapping[str, str]
    offers: Mapping[str, Mapping[str, str]]
    hook_modules: tuple[str, ...] = ()
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
        """Import the object that an entry of `offers` names: ``"package.module:Name"``.

        Raises:
            PluginLoadError: The object cannot be imported.
            MissingDependencyError: Its module needs a library that is not installed.
        """
        return load(path, self.distribution)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, to which ``headrace plugins list`` adds the certificate."""
        return asdict(self)


def _faulty(plugin: Plugin, state: str, reason: str, remedy: str = "") -> Plugin:
    """Return a plugin that cannot be used. The default remedy is to install it again."""
    remedy = remedy or f"Install it again: pip install --force-reinstall {plugin.distribution}"
    line = " ".join(reason.split())  # a wrong requirement is told with a line of its own
    return replace(plugin, state=state, reason=line, remedy=remedy, usable=False)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def qualifier(distribution: str) -> str:
    """Return the qualifier of a distribution, ``cv`` for ``Headrace_CV``: ``cv:ResizeMat``."""
    return _normal(distribution).removeprefix("headrace-")


def discover() -> list[Plugin]:
    """List all installed plugins, ordered by name, with their states.

    Of a distribution that is no plugin only ``entry_points.txt`` is read, of a plugin the head of
    its metadata as well.
    """
    from importlib.metadata import distributions

    plugins: dict[str, Plugin] = {}
    for dist in distributions():
        try:
            points = [point for point in dist.entry_points if point.group in _GROUP_NAMES]
            # Entry points that name words of core are for other tools: core has its own table.
            points = [point for point in points if not point.value.startswith("headrace.")]
            plugin = _plugin(points, dist) if points else None
        except Exception as error:  # noqa: BLE001 - metadata may be no text
            plugin = _unreadable(dist, error)
        if plugin is not None:  # the first distribution of a name on the path hides others
            plugins.setdefault(plugin.plugin, plugin)
    return sorted(plugins.values(), key=attrgetter("distribution"))


def _unreadable(dist: Distribution, error: Exception) -> Plugin | None:
    """Return a plugin whose entry points cannot be read; None where nothing says that it is one."""
    with suppress(Exception):
        plugin = _read_metadata(Plugin("", "", "unknown", "", {}, _NO_OFFERS), dist)
        if any(map(_OURS.match, plugin.requires)):
            return _faulty(plugin, "broken", f"its metadata cannot be read: {error}")
    return None


def _plugin(points: list[EntryPoint], dist: Distribution) -> Plugin:
    """Read the metadata of one distribution."""
    tables: dict[str, dict[str, str]] = {group: {} for group in _GROUP_NAMES.values()}
    twice = None
    for point in points:
        # An entry point may have blanks and an extra: ``odd : Odd [gpu]`` is ``odd:Odd``.
        path = "".join(point.value.partition("[")[0].split())
        if tables[_GROUP_NAMES[point.group]].setdefault(point.name, path) != path:
            twice = f"{point.group} offers {point.name!r} twice"
    name = points[0].value.partition(":")[0].partition(".")[0].strip()  # until the metadata tell
    backends, modules = tables.pop("backends"), dict.fromkeys(tables.pop("plugins").values())
    offers = {**_NO_OFFERS, **tables}
    plugin = Plugin(qualifier(name), name, "unknown", "", backends, offers, (*modules,))
    try:
        plugin = _read_metadata(plugin, dist)
        plugin = _check_version(plugin)
    except Exception as error:  # noqa: BLE001 - one plugin's bad metadata must not stop the others
        plugin = _faulty(plugin, "broken", f"its metadata cannot be used: {error}")
    if twice is not None:
        plugin = _faulty(plugin, "broken", f"its metadata cannot be used: {twice}")
    allowed = os.environ.get("HEADRACE_PLUGINS")
    return plugin if allowed is None else _if_allowed(plugin, allowed)


def _read_metadata(plugin: Plugin, dist: Distribution) -> Plugin:
    """Read name, version and requirements, but not the description, which may be long."""
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

    fits = Requirement("headrace").specifier  # of all of them together
    for requirement in map(Requirement, filter(_OURS.match, plugin.requires)):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            fits &= requirement.specifier
    plugin = replace(plugin, range=",".join(sorted({*map(str, fits)}, reverse=True)))
    if not fits.contains(__version__, prereleases=True):
        reason = f"it requires headrace {plugin.range}, this is {__version__}"
        remedy = f"Install versions that fit: pip install --upgrade {plugin.distribution} headrace"
        return _faulty(plugin, "incompatible", reason, remedy)
    return plugin


def _if_allowed(plugin: Plugin, allowed: str) -> Plugin:
    """Apply ``HEADRACE_PLUGINS``: ``cv,ort`` allows these alone, ``-torch`` denies, empty all."""
    words = [word.strip() for word in allowed.split(",") if word.strip()]
    denied = {_normal(word[1:].strip()) for word in words if word.startswith("-")}
    only = {_normal(word) for word in words if not word.startswith("-")}
    name, names = plugin.plugin, {plugin.plugin, _normal(plugin.distribution)}
    if not names & denied and (names & only or (denied and not only)):
        return plugin
    remedy = f"Add {name!r} to HEADRACE_PLUGINS, or unset it."
    if names & denied:
        remedy = f"Take '-{name}' out of HEADRACE_PLUGINS."
    return _faulty(plugin, "disabled", f"HEADRACE_PLUGINS={allowed} does not allow it", remedy)


# Hooks.


def call_hooks(plugin: Plugin) -> Plugin:
    """Import the modules of a plugin's hooks, and return the plugin with what the hooks offer.

    Where a hook fails, none offers anything, and the state of the plugin says why.
    """
    if not plugin.usable or not plugin.hook_modules:
        return plugin
    try:
        return replace(plugin, offers={**plugin.offers, **_answers(plugin)})
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - one plugin's bad hooks must not stop the others
        reason = f"its hooks failed: {error_text(error)}"
        lacking = [library_missing(error, path) for path in plugin.hook_modules]
        remedy = f"Install {lacking[0]!r}, or install {plugin.distribution} again."
        refusal = ("missing_dependency", reason, remedy) if all(lacking) else ("broken", reason)
        return replace(_faulty(plugin, *refusal), usable=True)


def _answers(plugin: Plugin) -> dict[str, dict[str, str]]:
    """Call the hooks of a plugin; return the import paths of each kind by name.

    A plugin has a manager of its own: what one of its functions raises ends the calls of no other
    plugin, and what pluggy's marker offers holds within it.

    Raises:
        TypeError: A function would never be called, or its answer is no table of import paths.
        ValueError: It offers a name twice.
        pluggy.PluginValidationError: A function takes what its hook does not give.
    """
    import pluggy

    manager = pluggy.PluginManager("headrace")
    manager.add_hookspecs(import_path("headrace.hookspecs"))  # which stands above this module
    if os.environ.get("HEADRACE_HOOK_TRACE", "") not in ("", "0"):
        manager.trace.root.setwriter(lambda text: sys.stderr.write(f"{plugin.plugin}: {text}"))
        manager.enable_tracing()
    for path in reversed(plugin.hook_modules):  # what is registered last is called first
        module = import_path(path)
        manager.register(module, path)
        marked = {caller.name for caller in manager.get_hookcallers(module) or ()}
        if unmarked := sorted(vars(module).keys() & _FUNCTIONS.keys() - marked):
            raise TypeError(f"{unmarked[0]} has no marker @hookimpl, so nobody would call it")
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        name = str(error).split("'")[1]  # unknown hook 'NAME' in plugin ...
        ways = "One that only another version of headrace calls is marked optionalhook=True."
        raise TypeError(f"there is no hook {name!r}. {among(name, _FUNCTIONS, ways)}") from error
    tables: dict[str, dict[str, str]] = {hook: {} for hook in HOOKS}
    for function, hook in _FUNCTIONS.items():
        for answer in getattr(manager.hook, function)():
            texts = [*answer, *answer.values()] if isinstance(answer, dict) else [answer]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{function}() gave {answer!r}")
            for name, path in answer.items():
                if tables[hook].setdefault(name, path) != path:
                    raise ValueError(f"{function}() offers {name!r} twice")
    return tables


# Importing the objects that a plugin names.


def import_path(path: str) -> Any:
    """Import ``module`` or ``module:attribute``."""
    module, _, name = path.partition(":")
    __import__(module)  # as `importlib.import_module`, in C where the module is there
    return attrgetter(name)(sys.modules[module]) if name else sys.modules[module]


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

_POLICIES = {
    "batch_policies": {"greedy": "headrace.policies:Greedy"},
    "dispatch_policies": {"best_fit": "headrace.policies:BestFit"},
}
CORE = Plugin("headrace", "headrace", __version__, "", CORE_BACKENDS, {**_NO_OFFERS, **_POLICIES})
"""Core itself, as if it were a plugin."""

ELSEWHERE: dict[str, dict[str, str]] = _table("names_elsewhere")
"""The distribution of Headrace's repository to install for a name, in a table of each kind."""

KNOWN_ELSEWHERE = ELSEWHERE["backends"]
REPLACED, SYNONYMS = ELSEWHERE["replaced"], ELSEWHERE["synonyms"]
"""What to write for a name of torchpipe, and the backend that a name of the field means."""


def how_to_install(distribution: str) -> str:
    """Say how to install a distribution of `ELSEWHERE`, also from a clone of the repository."""
    return (
        f"Install it: pip install {distribution}, or in a clone of Headrace, after ./dev wheels: "
        f"pip install --find-links dist {distribution}"
    )
