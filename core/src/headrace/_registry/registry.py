"""From a name to the class behind it, without importing anything before it is asked for."""

from __future__ import annotations

import difflib
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import headrace
from headrace._registry.catalogue import (
    CORE_BACKENDS,
    CORE_POLICIES,
    KNOWN_ELSEWHERE,
    how_to_install,
)
from headrace._registry.contract import check_class
from headrace._registry.discovery import PluginRecord, discover
from headrace._registry.hooks import Offer, call_hook, find_offer, offers
from headrace._registry.loading import load
from headrace.errors import PluginError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace._backend import Backend

__all__ = ["BackendSpec", "Registry", "register", "registry"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
C = TypeVar("C", bound="Callable[..., Any]")


@dataclass(frozen=True)
class BackendSpec:
    """One backend that a name may mean.

    Attributes:
        name: The name without a qualifier.
        plugin: The qualifier: ``cv``, ``headrace`` for core, or the module that registered it.
        distribution, version: Who brings it; ``version`` empty when no distribution does.
        path: Import path ``module:Class``, empty for a registered class.
        cls: The class, when it was registered.
    """

    name: str
    plugin: str
    distribution: str
    version: str = ""
    path: str = ""
    cls: type[Any] | None = field(default=None, repr=False)

    @property
    def is_loaded(self) -> bool:
        """Whether the module of the class is imported already."""
        return self.cls is not None or self.path.partition(":")[0] in sys.modules

    def load(self) -> type[Backend]:
        """Import the class.

        Raises:
            PluginLoadError: Its module cannot be imported, or has no such class.
            MissingDependencyError: Its module needs a library that is not installed.
            PluginError: It is no class that could be a backend.
        """
        if self.cls is not None:
            return as_backend(self.cls)
        found = load(self.path, self.distribution, f"the backend {self.name!r}")
        try:
            return as_backend(found)
        except PluginError as error:
            error.what = f"{self.name!r} of {self.distribution}: {error.what}"
            raise


def is_policy(cls: Any) -> bool:
    """Tell whether a class is a policy, and not a backend."""
    policies = sys.modules.get("headrace.policies")  # before its import no class can be one
    if policies is None or not isinstance(cls, type):
        return False
    return issubclass(cls, (policies.BatchPolicy, policies.DispatchPolicy))


def as_backend(cls: Any) -> type[Backend]:
    """Give ``cls`` if it is a Backend, else a Backend made of a plain class with ``forward``."""
    from headrace._backend import Backend

    if not isinstance(cls, type):
        hint = "A backend is a class with forward(self, batch), or a function of data."
        raise PluginError(f"{cls!r} is no backend", hint=hint)
    check_class(cls)
    if issubclass(cls, Backend):
        return cls
    with _lock:
        made = _made.get(cls)
        if made is None:
            body = {
                "__call__": Backend.__call__,
                "__doc__": cls.__doc__,
                "__module__": cls.__module__,
            }
            try:
                made = _made[cls] = type(cls.__name__, (cls, Backend), body)
            except TypeError as error:
                raise PluginError(f"{cls!r} is no backend: {error}") from error
    return made


_lock = threading.RLock()
_made: dict[Any, type[Backend]] = {}


def _of_function(function: Any, *, batched: bool) -> type[Backend]:
    """Make a backend class of a callable."""
    from headrace._backend import Backend
    from headrace._function import is_async, of_function

    if not callable(function) or isinstance(function, Backend):
        return as_backend(function)  # which says why not
    if is_async(function):
        raise PluginError(
            f"{function!r} is asynchronous, and a backend is not awaited",
            hint="Register a function that returns its result.",
        )
    return of_function(function, batched=batched)


def _is_again(known: type[Any], cls: type[Any]) -> bool:
    """Tell whether a class or function is registered again, perhaps in a new version.

    A cell of a notebook that is run again makes another class with the same module and qualified name.
    """
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        return False
    # Lambdas, and what is made inside of a function, may have one name and be different things.
    same = getattr(known, "function", known) is getattr(cls, "function", cls)
    return same or "<" not in cls.__qualname__


class Registry:
    """All names of the process: core's, those of installed plugins, and registered ones.

    Attributes:
        local: Backends and policies registered for the process, by name.
    """

    def __init__(self) -> None:
        self.local: dict[str, type[Any]] = {}
        self._plugins: list[PluginRecord] | None = None
        self._recording: dict[int, list[tuple[str, dict[str, type[Any]]]]] = {}

    def plugins(self) -> list[PluginRecord]:
        """Give a record per installed plugin; the first call reads the metadata."""
        with _lock:
            if self._plugins is None:
                self._plugins = discover()
            return self._plugins

    def refresh(self) -> None:
        """Forget what was discovered, so that the next question reads the metadata again."""
        with _lock:
            self._plugins = None

    def add(self, name: str, cls: Any, *, replace: bool, batched: bool) -> None:
        """Register a class or a function; see `register`."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PluginError(
                f"{name!r} is no name for a backend",
                hint="A letter or _, then letters, digits and _ . - /",
            )
        if name in CORE_BACKENDS or name in CORE_POLICIES:
            raise PluginError(f"the name {name!r} belongs to core", hint="Choose another name.")
        if not isinstance(cls, type):
            cls = _of_function(cls, batched=batched)
        elif batched:
            raise PluginError(
                f"{cls!r} is a class, and batched=True is for functions",
                hint="The forward(self, batch) of a class is given batches anyway.",
            )
        elif not is_policy(cls):
            as_backend(cls)
        table = self._table()
        known = table.get(name)
        if known is not None and not replace and not _is_again(known, cls):
            raise PluginError(
                f"{name!r} is registered already, as {known.__module__}.{known.__qualname__}",
                hint="Choose another name, or pass replace=True.",
            )
        if known is not cls:
            _made.pop(known, None)
        table[name] = cls

    def _table(self) -> dict[str, type[Any]]:
        """Give the table of the file that this thread is importing, else that of the process.

        A module that the file imports registers for the process: it is not run a second time for
        another configuration that imports it.
        """
        recording = self._recording.get(threading.get_ident())
        if not recording:
            return self.local
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        module, table = recording[-1]
        return table if frame.f_globals.get("__name__") == module else self.local

    @contextmanager
    def recording(self, module: str, table: dict[str, type[Any]]) -> Iterator[None]:
        """Let what ``module`` registers, while it is imported by this thread, go into ``table``."""
        stack = self._recording.setdefault(threading.get_ident(), [])
        stack.append((module, table))
        try:
            yield
        finally:
            stack.pop()

    def definitions(self) -> dict[str, list[tuple[PluginRecord, str]]]:
        """Give the definitions of all plugins: per name, who offers it and its expression.

        One that is named like a word of core is never used, as a backend of that name is not.
        """
        found: dict[str, list[tuple[PluginRecord, str]]] = {}
        for record, answer in call_hook(self.plugins(), "headrace_definitions"):
            for name, text in answer.items():
                if name not in CORE_BACKENDS:
                    found.setdefault(name, []).append((record, text))
        return found

    def node_entrypoint(self) -> tuple[str, str] | None:
        """Give the expression of a node that a plugin sets, with its distribution.

        Raises:
            PluginError: Two plugins set one.
        """
        answers = call_hook(self.plugins(), "headrace_node_entrypoint")
        if len(answers) > 1:
            names = " and ".join(record.distribution for record, _ in answers)
            raise PluginError(
                f"{names} both set the expression of a node",
                hint="Disable one of them with HEADRACE_PLUGINS.",
            )
        return (answers[0][1], answers[0][0].distribution) if answers else None

    def offer(self, hook: str, name: str, what: str) -> Offer | None:
        """Find which plugin offers ``name`` through a hook; see `find_offer`."""
        return find_offer(self.plugins(), hook, name, what)

    def offered(self, hook: str) -> list[str]:
        """Give the names that plugins offer through a hook."""
        return sorted({offer.name for offer in offers(self.plugins(), hook)})

    def unusable_hooks(self) -> list[str]:
        """Say of each plugin with hooks that cannot be used why not, in a sentence."""
        return [
            f"{record.distribution} cannot be used: {record.reason}."
            for record in self.plugins()
            if record.hooks and record.state != "ok"
        ]

    def find(
        self, name: str, files: Iterable[tuple[str, dict[str, type[Any]]]] = ()
    ) -> list[BackendSpec]:
        """Give every backend that ``name``, perhaps ``plugin:Name``, may mean here.

        Args:
            name: As written in an expression.
            files: The files that the configuration imports, and what each has registered.
        """
        plugin, _, part = name.rpartition(":")
        nearest_first = self._candidates(part, files)
        if plugin:
            return [spec for specs in nearest_first for spec in specs if spec.plugin == plugin]
        return next((specs for specs in nearest_first if specs), [])

    def _candidates(
        self, name: str, files: Iterable[tuple[str, dict[str, type[Any]]]]
    ) -> list[list[BackendSpec]]:
        """Give core's, then what imported files, the process and plugins have under a name."""
        core = []
        if name in CORE_BACKENDS:
            version = headrace.__version__
            core = [BackendSpec(name, "headrace", "headrace", version, CORE_BACKENDS[name])]
        imported = [
            BackendSpec(name, Path(path).stem, path, cls=table[name])
            for path, table in files
            if name in table and not is_policy(table[name])
        ]
        local = []
        cls = self.local.get(name)
        if cls is not None and not is_policy(cls):
            local = [BackendSpec(name, cls.__module__, cls.__module__, cls=cls)]
        installed = [
            BackendSpec(name, r.plugin, r.distribution, r.version, r.backends[name])
            for r in self.plugins()
            if r.state == "ok" and name in r.backends
        ]
        return [core, imported, local, installed]

    def names(self, files: Iterable[tuple[str, dict[str, type[Any]]]] = ()) -> list[str]:
        """Give every name that may stand in an expression."""
        names = set(CORE_BACKENDS)
        for table in (self.local, *(table for _, table in files)):
            names.update(name for name, cls in table.items() if not is_policy(cls))
        for record in self.plugins():
            if record.state == "ok":
                names.update(record.backends)
        return sorted(names)

    def unknown(self, name: str, known: Iterable[str]) -> Problem:
        """Say why ``name`` is unknown and what to do about it."""
        _, _, part = name.rpartition(":")
        for record in self.plugins():
            if part in record.backends and record.state != "ok":
                return Problem(
                    "plugin_" + record.state,
                    f"{name!r} comes with {record.distribution} {record.version}, which cannot be "
                    f"used: {record.reason}",
                    hint=record.remedy,
                )
        installed = {record.distribution for record in self.plugins()}
        if part in KNOWN_ELSEWHERE and KNOWN_ELSEWHERE[part] not in installed:
            distribution = KNOWN_ELSEWHERE[part]
            return Problem(
                "missing_plugin",
                f"{name!r} comes with {distribution}, which is not installed",
                hint=how_to_install(distribution),
            )
        return Problem(
            "unknown_backend", f"unknown backend {name!r}", suggestion=nearest(part, known)
        )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Give the known name that is most like ``name``, or None when none is like it."""
    if len(name) > 200:
        return None  # comparing takes the square of the length
    by_lower: dict[str, str] = {}
    for one in known:
        by_lower.setdefault(one.lower(), one)
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


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

    From a file that a configuration imports, it is seen by configurations that import it only.
    Also a decorator: ``@headrace.register("Name")``, or ``@headrace.register`` for the own name of
    the class or function.

    Args:
        name: A letter or ``_``, then letters, digits and ``_ . - /``; default: that of the class.
        cls: A subclass of `Backend` or of a policy, a plain class with ``forward``, or a function:
            what it returns for ``data`` is ``result``, and what it raises fails that request alone.
        replace: Whether another class of that name may be replaced. The same one again is no
            error, nor is one with the same module and qualified name, which takes its place: a cell
            of a notebook can be run again.
        batched: The function takes a list of ``data`` and returns a list of as many results; what
            it raises fails the whole batch.

    Returns:
        The class or function.

    Raises:
        PluginError: The name is taken, belongs to core or is none; or the class is no backend.
    """
    if cls is None and name is not None and not isinstance(name, str):
        own: Any = getattr(name, "__name__", None)
        return register(own, name, replace=replace, batched=batched)
    if cls is None:

        def decorate(decorated: Any) -> Any:
            own: Any = getattr(decorated, "__name__", None)
            return register(
                own if name is None else name, decorated, replace=replace, batched=batched
            )

        return decorate
    with _lock:
        registry.add(name, cls, replace=replace, batched=batched)
    return cls
