"""From an import path, a plain class or a function to a backend, with errors that say what to do."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from headrace._portable import shown
from headrace.errors import MissingDependencyError, PluginError, PluginLoadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._backend import Backend

_METHODS = ("forward", "forward_with_dep", "init", "warm_up", "close", "describe")

_LOCK = threading.RLock()
_made: dict[Any, type[Backend]] = {}
"""Per plain class the backend that was made of it."""

_right: WeakSet[type[Any]] = WeakSet()
"""Backends that `_check_class` has found to be right: a large configuration names each very often."""


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
        what = f"the backend {self.name!r} of {self.distribution}"
        found = load(self.path, self.distribution, what)
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
    if cls in _right:
        return cls
    _check_class(cls)
    if issubclass(cls, Backend):
        _right.add(cls)
        return cls
    with _LOCK:
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


def of_callable(function: Any, *, batched: bool) -> type[Backend]:
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


def source_of(cls: type[Backend]) -> Any:
    """Give the function or the plain class of which a backend was made; itself if of none."""
    from headrace._backend import Backend
    from headrace._function import FunctionBackend

    if issubclass(cls, FunctionBackend) and "function" in vars(cls):
        return cls.function
    plain = cls.__bases__[0]
    made = len(cls.__bases__) == 2 and cls.__bases__[1] is Backend and _made.get(plain) is cls
    return plain if made else cls


# What can be seen of a class without running it.


def _check_class(cls: type[Any]) -> None:
    """Refuse a class whose attributes contradict the backend contract.

    Raises:
        PluginError: It has no ``forward``; a method is asynchronous or a generator; or one of
            ``reads``, ``writes``, ``takes``, ``phases``, ``prefixes`` and ``builds_elsewhere`` is of a
            wrong kind. It names the class and all that is wrong.
    """
    wrong = [*_wrong_methods(cls), *_wrong_words(cls)]
    if wrong:
        raise PluginError(
            f"the class {cls.__module__}.{cls.__qualname__} is no backend: {'; '.join(wrong)}",
            hint="See headrace.Backend for what a class may say.",
        )


def _wrong_methods(cls: type[Any]) -> Iterator[str]:
    if not _has_forward(cls):
        yield "it has no method forward(self, batch)"
    for name in _METHODS:
        method = getattr(cls, name, None)
        if method is None:
            continue
        if not callable(method):
            yield f"{name} is no method, it is {shown(method)}"
        elif inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            yield f"{name} is asynchronous, and a backend runs in a thread: write def {name}"
        elif inspect.isgeneratorfunction(method):
            yield f"{name} is a generator, which does nothing when it is called"


def _wrong_words(cls: type[Any]) -> Iterator[str]:
    for name in ("reads", "writes"):
        keys = getattr(cls, name, ())
        if not (isinstance(keys, property) or _is_typed_dict(keys) or _are_texts(keys)):
            example = f'{name} = ("{keys}",)' if isinstance(keys, str) else f'{name} = ("data",)'
            yield f"{name} is {shown(keys)}, not a tuple of keys: write {example}"
    if not _are_texts(getattr(cls, "prefixes", ())):
        yield f'prefixes is {shown(cls.prefixes)}, not a tuple of texts like ("or", "key=")'
    if not _is_arity(getattr(cls, "takes", 0)):
        yield f"takes is {shown(cls.takes)}, neither a number of children nor (least, most or None)"
    if not _is_count(getattr(cls, "phases", 1), 1):
        yield f"phases is {shown(cls.phases)}, not a number of at least 1"
    elsewhere = getattr(cls, "builds_elsewhere", False)
    if not isinstance(elsewhere, bool):
        yield f"builds_elsewhere is {shown(elsewhere)}, not True or False"
    elif elsewhere and getattr(cls, "takes", 0) == 0:
        yield "builds_elsewhere is True and it takes no children: write takes = 1"
    elif elsewhere and getattr(cls, "forward_with_dep", None) is not None:
        yield "builds_elsewhere is True and it has forward_with_dep, whose dependency is built here"


def _has_forward(cls: type[Any]) -> bool:
    """Tell whether a class has a ``forward`` of its own; core's words of wiring need none."""
    if cls.__module__.startswith("headrace.words."):
        return True
    from headrace._backend import Backend

    inherited = (Backend.forward, None)
    return any(
        getattr(cls, name, None) not in inherited for name in ("forward", "forward_with_dep")
    )


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_arity(takes: Any) -> bool:
    if not isinstance(takes, (tuple, list)):
        return _is_count(takes, 0)
    if len(takes) != 2 or not _is_count(takes[0], 0):
        return False
    return takes[1] is None or _is_count(takes[1], takes[0])


def _are_texts(value: Any) -> bool:
    return isinstance(value, (tuple, list, set, frozenset)) and all(
        isinstance(one, str) and one for one in value
    )


def _is_typed_dict(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "__required_keys__")


_POINT = re.compile(r"\s*([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[[^\[\]]*\]\s*)?")


def plain_path(path: str) -> str:
    """Give an import path without the blanks and extras that an entry point may have.

    ``odd : Odd [gpu]`` is ``odd:Odd``; what is no import path stays as it is.

    Source:
        The entry points specification of packaging.python.org, "File format".
    """
    match = _POINT.fullmatch(path)
    if match is None:
        return path.strip()
    return f"{match[1]}:{match[2]}" if match[2] else match[1]


def found(path: str) -> Any:
    """Import ``module`` or ``module:attribute``."""
    path = plain_path(path)
    module, _, attribute = path.partition(":")
    one: Any = importlib.import_module(module)
    for part in attribute.split(".") if attribute else ():
        one = getattr(one, part)
    return one


def library_missing(error: BaseException, path: str) -> str | None:
    """Give the module that an import lacks, when it is another than the one that is imported."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = path.partition(":")[0]
    return None if module == error.name or module.startswith(f"{error.name}.") else error.name


def load(path: str, distribution: str, what: str = "") -> Any:
    """Import ``module:attribute`` of a plugin.

    Args:
        path: The import path.
        distribution: Who brings it.
        what: What it is, for the error: ``the backend 'ResizeMat' of headrace-cv``.

    Raises:
        PluginLoadError: It cannot be imported.
        MissingDependencyError: It needs a library that is not installed.
    """
    about = f"{what} cannot be imported from {path!r}" if what else f"cannot import {path!r}"
    try:
        return found(path)
    except (Exception, SystemExit) as error:
        missing = library_missing(error, path)
        if missing is not None:
            raise MissingDependencyError(
                f"{about}: {error}",
                distribution=distribution,
                hint=f"Install {missing!r}, or install {distribution} again.",
            ) from error
        raise PluginLoadError(
            f"{about}: {type(error).__name__}: {error}",
            distribution=distribution,
            hint="See `headrace plugins doctor`.",
        ) from error
