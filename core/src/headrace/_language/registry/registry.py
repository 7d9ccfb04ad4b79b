"""The registry: from a name to the class behind it, which is imported only when it is asked for."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, overload

from headrace._language.registry.discovery import (
    CORE,
    CORE_BACKENDS,
    HOOKS,
    KNOWN_ELSEWHERE,
    REPLACED,
    Plugin,
    call_hooks,
    discover,
    how_to_install,
    load,
    load_backend,
)
from headrace._texts import nearest
from headrace.errors import PluginError, Problem

_lock = threading.RLock()

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_POLICIES = ("batch_policies", "dispatch_policies")
C = TypeVar("C", bound="Callable[..., Any]")

Files = tuple[tuple[str, dict[str, type[Any]]], ...]
"""The files that a configuration imports, and what each has registered."""


@dataclass(frozen=True)
class Offer:
    """One meaning of a name: a backend, a policy or a probe.

    Attributes:
        name: The name without a qualifier.
        plugin: The qualifier: ``cv``, ``headrace`` for core, or the module that registered it.
        distribution, version: The distribution that brings it. For a class that is no plugin's, the
            module or file that registered it, and no version.
        path: Import path ``module:Class``, empty for a registered class.
        cls: The class, when it was registered.
    """

    name: str
    plugin: str = ""
    distribution: str = ""
    version: str = ""
    path: str = ""
    cls: type[Any] | None = field(default=None, repr=False)

    def load(self, noun: str = "backend") -> type[Any]:
        """Return the class, and import it if need be, with the errors of `Plugin.backend`.

        Args:
            noun: What the class is to be, for errors. Only a backend is also checked here.
        """
        if noun == "backend":
            return load_backend(self.name, self.path, self.distribution, self.cls)
        about = f"the {noun} {self.name!r} of {self.distribution}"
        return self.cls or load(self.path, self.distribution, about)


def _offers_of(plugins: Iterable[Plugin], table: str, name: str | None = None) -> list[Offer]:
    return [
        Offer(part, plugin.plugin, plugin.distribution, plugin.version, paths[part])
        for plugin in plugins
        if plugin.usable
        for paths in [plugin.backends if table == "backends" else plugin.offers[table]]
        for part in (paths if name is None else paths.keys() & {name})
    ]


def _may_mean(cls: type[Any] | None, table: str) -> bool:
    """Tell whether a name may mean a registered class where an entry of ``table`` is looked for.

    No probe is registered. A backend in the place of a policy is an error that says so.
    """
    return cls is not None and (table in _POLICIES or (table == "backends" and not is_policy(cls)))


def is_policy(cls: Any) -> bool:
    """Tell whether a class is a policy, and not a backend."""
    # Before its import no class can derive from a policy.
    policies = sys.modules.get("headrace.policies")
    if policies is None or not isinstance(cls, type):
        return False
    return issubclass(cls, (policies.BatchPolicy, policies.DispatchPolicy))


def _is_again(known: type[Any], cls: type[Any]) -> bool:
    """Tell whether a class or function is the known one once more, perhaps in a new version.

    A cell of a notebook that is run again makes another class with the same module and qualified
    name.
    """
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        return False
    # Two lambdas, or two classes that functions make ("<" in the name), may have the same name and
    # differ.
    same = getattr(known, "function", known) is getattr(cls, "function", cls)
    return same or "<" not in cls.__qualname__


# No lock is held while these run, since modules of hooks may wait for other threads as they are
# imported. Two threads may both discover, and find the same.


@lru_cache(maxsize=1)
def _plugins_of(where: tuple[str | None, ...]) -> list[Plugin]:
    """Return the plugins that are installed and allowed there."""
    return discover()


@lru_cache(maxsize=1)
def _plugins_with_hooks(where: tuple[str | None, ...]) -> list[Plugin]:
    """Return the same plugins with what their hooks offer."""
    return [*map(call_hooks, _plugins_of(where))]


class Registry:
    """All names of the process: core's, those of installed plugins, and registered ones.

    Attributes:
        local: Backends and policies registered for the process, by name.
    """

    def __init__(self) -> None:
        self.local: dict[str, type[Any]] = {}
        self._recording: dict[str, dict[str, type[Any]]] = {}

    def plugins(self, *, hooks: bool = False) -> list[Plugin]:
        """Return all installed plugins, with what their metadata offer. The first call reads these.

        So does the first call after a change of ``sys.path``, where plugins are installed, or of
        ``HEADRACE_PLUGINS``, which allows them.

        Args:
            hooks: Whether with what their hooks offer, which are imported and called once for this.
        """
        where = (os.environ.get("HEADRACE_PLUGINS"), *sys.path)
        return _plugins_with_hooks(where) if hooks else _plugins_of(where)

    def refresh(self) -> None:
        """Forget the discovered plugins, so that the next call reads the metadata again."""
        _plugins_of.cache_clear()
        _plugins_with_hooks.cache_clear()

    def add(self, name: str, cls: Any, *, replace: bool, batched: bool) -> None:
        """Register a class or a function; see `register`."""
        from headrace._language.registry.backends import as_backend, of_function

        if not isinstance(name, str) or not _NAME.fullmatch(name):
            message = f"{name!r} is no name for a backend"
            raise PluginError(message, hint="A letter or _, then letters, digits and _ . - /")
        if name in CORE_BACKENDS or any(name in CORE.offers[table] for table in _POLICIES):
            raise PluginError(f"the name {name!r} belongs to core", hint="Choose another name.")
        if not isinstance(cls, type):
            cls = of_function(cls, batched=batched)
        elif batched:
            message = f"{cls!r} is a class, and batched=True is for functions"
            raise PluginError(message, hint="Its forward(self, batch) is given batches anyway.")
        elif not is_policy(cls):
            as_backend(cls)
        table = self._table()
        known = table.get(name)
        if known is not None and not replace and not _is_again(known, cls):
            message = f"{name!r} is registered already, as {known.__module__}.{known.__qualname__}"
            raise PluginError(message, hint="Choose another name, or pass replace=True.")
        table[name] = cls

    def _table(self) -> dict[str, type[Any]]:
        """Return the table of the file that is being imported here, else that of the process.

        A module that the file imports registers for the process, since Python runs the module only
        once, and another configuration may import it as well.
        """
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        return self._recording.get(frame.f_globals.get("__name__", ""), self.local)

    @contextmanager
    def recording(self, module: str, table: dict[str, type[Any]]) -> Iterator[None]:
        """Put what ``module`` registers into ``table`` while it is imported."""
        self._recording[module] = table
        try:
            yield
        finally:
            del self._recording[module]

    def find(self, name: str, files: Files = (), table: str = "backends") -> list[Offer]:
        """Return everything that ``name``, perhaps ``plugin:Name``, may mean here.

        Args:
            name: The name as written in an expression.
            files: The files that the configuration imports, and what each has registered.
            table: What is looked for: ``backends``, ``probes``, ...
        """
        plugin, _, part = name.rpartition(":")
        nearest_first = self._candidates(part, files, table)
        if plugin:
            return [offer for offers in nearest_first for offer in offers if offer.plugin == plugin]
        return next(filter(None, nearest_first), [])

    def _candidates(self, name: str, files: Files, table: str) -> Iterator[list[Offer]]:
        """Return what core, imported files, the process and plugins have under a name, in order."""
        # A policy of core for the other key is found as well: the error says that it is none for
        # this one.
        tables = _POLICIES if table in _POLICIES else (table,)
        yield [offer for policies in tables for offer in _offers_of([CORE], policies, name)]
        named = [(path, Path(path).stem, classes.get(name)) for path, classes in files]
        yield [
            Offer(name, stem, path, cls=cls) for path, stem, cls in named if _may_mean(cls, table)
        ]
        cls = self.local.get(name)
        module = getattr(cls, "__module__", "")
        yield [Offer(name, module, module, cls=cls)] if _may_mean(cls, table) else []
        yield _offers_of(self.plugins(hooks=table in HOOKS), table, name)

    def names(self, files: Files = ()) -> list[str]:
        """Return every name that may stand in an expression."""
        names = set(CORE_BACKENDS)
        for table in (self.local, *(table for _, table in files)):
            names.update(name for name, cls in table.items() if not is_policy(cls))
        return sorted(names.union(*(plugin.backends for plugin in self.plugins() if plugin.usable)))

    def unknown(self, name: str, known: Iterable[str], meant: str | None = None) -> Problem:
        """Say why ``name`` is unknown and what to do about it.

        Args:
            name: The name as written.
            known: Names of which the nearest one was perhaps meant.
            meant: What was perhaps meant, where that is known.
        """
        qualifier, _, part = name.rpartition(":")
        plugins = self.plugins()
        brings = KNOWN_ELSEWHERE.get(part)
        for plugin in plugins:
            has_it = not qualifier and (part in plugin.backends or brings == plugin.distribution)
            if not plugin.usable and (has_it or qualifier == plugin.plugin):
                by = f"{plugin.distribution} {plugin.version}"
                message = f"{name!r} comes with {by}, which cannot be used: {plugin.reason}"
                return Problem("plugin_" + plugin.state, message, hint=plugin.remedy)
        if brings is not None and brings not in {plugin.distribution for plugin in plugins}:
            message = f"{name!r} comes with {brings}, which is not installed"
            return Problem("missing_plugin", message, hint=how_to_install(brings))
        if part in REPLACED:
            return Problem("unknown_backend", f"unknown backend {name!r}", hint=REPLACED[part])
        names = [*known]
        meant = meant or nearest(name, names) or nearest(part, names)
        how = ["`headrace plugins list` shows what there is; `import` brings your own."]
        broken = [plugin for plugin in plugins if plugin.state == "broken"]
        how.extend(f"{plugin.distribution} cannot be used: {plugin.reason}." for plugin in broken)
        hint = None if meant else " ".join(how)
        return Problem("unknown_backend", f"unknown backend {name!r}", suggestion=meant, hint=hint)

    def offers(self, table: str) -> list[Offer]:
        """Return every entry of core and of plugins in a table: ``probes``, ``readers``, ..."""
        return _offers_of((CORE, *self.plugins(hooks=table in HOOKS)), table)


registry = Registry()
"""The registry of the process."""


@overload
def register(name: str, cls: C, *, replace: bool = False, batched: bool = False) -> C: ...
@overload
def register(
    name: str | None = None, *, replace: bool = False, batched: bool = False
) -> Callable[[C], C]: ...
@overload
def register(name: C, *, replace: bool = False, batched: bool = False) -> C: ...
def register(
    name: Any = None, cls: Any = None, *, replace: bool = False, batched: bool = False
) -> Any:
    """Register a backend or a policy under a name, for the process.

    A name registered by an imported file is known only to configurations that import this file. It
    is also a decorator: ``@headrace.register("Name")``, or ``@headrace.register`` for the own name
    of the class or function.

    Args:
        name: A letter or ``_``, then letters, digits and ``_ . - /``. Default: the name of the
            class.
        cls: A subclass of `Backend` or of a policy, a plain class with ``forward``, or a function
            from ``data`` to ``result``. An error of the function fails its request alone.
        replace: Whether another class of that name may be replaced. Registering the same class
            again is no error, and a class with the same module and qualified name takes its place:
            a cell of a notebook can be run again.
        batched: Whether the function takes a list of ``data`` and returns a list of as many
            results. An error then fails the whole batch.

    Returns:
        The class or function.

    Raises:
        PluginError: The name is taken, belongs to core or is not allowed, or the class is no
            backend.
    """
    if cls is None and name is not None and not isinstance(name, str):
        name, cls = getattr(name, "__name__", None), name
    if cls is None:

        def decorate(decorated: Any) -> Any:
            chosen_name: Any = getattr(decorated, "__name__", None) if name is None else name
            return register(chosen_name, decorated, replace=replace, batched=batched)

        return decorate
    with _lock:
        registry.add(name, cls, replace=replace, batched=batched)
    return cls
