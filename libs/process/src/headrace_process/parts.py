"""What another process needs to build the child of a container, and what it has built of it."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from functools import partial, reduce
from types import FunctionType
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, PluginLoadError, SetupError
from headrace.isolation import error_text
from headrace.keys import DATA, RESERVED, RESULT
from headrace.plugins import build, resolve

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from headrace.isolation import ChildConfig
    from headrace.keys import Request
    from headrace.plan import Element
    from headrace.plugins import BuiltExpression
    from headrace_process.exchange import Outcomes

__all__ = ["BuiltPart", "Part", "elements_of", "versions_of"]

_INTO_A_MODULE = "into a module, or into a file that the configuration names under `import`."

_SENT_ALWAYS = {*RESERVED} - {RESULT}
"""The reserved keys that go with a request, whatever the backends read."""


def elements_of(child: ChildConfig) -> list[Element]:
    """Return the names in a child with their classes and checked options, parents first."""
    return resolve(child.config).walk()


def versions_of(elements: Iterable[Element]) -> dict[str, str]:
    """Return the versions needed to build some elements, by distribution, with core and ``python``, as ``"3.11"``."""
    versions = {element.distribution: element.version for element in elements if element.version}
    python = "{}.{}".format(*sys.version_info)
    return {**versions, "python": python, "headrace": headrace.__version__}


class Part:
    """A child of a container, ready to be pickled and built elsewhere. To unpickle it, no plugin is imported.

    Args:
        child: The child.
        node: The node of the container.

    Attributes:
        name: The child's name, as written.

    Raises:
        SetupError: Classes or functions of the child cannot be imported by their names, or its options cannot be
            pickled.
    """

    def __init__(self, child: ChildConfig, node: str) -> None:
        self.name, self._asked = child.name, child.asked
        elements, config = elements_of(child), child.config
        self._rerun = all(element.cls.rerun for element in elements if not _hands_on(element))
        files = {*map(str, config.files)}
        try:
            self._registered = {
                own.backend: (_import_path(own.made_of), getattr(own.cls, "batched", False) is True)
                for own in elements
                if own.registered and own.distribution not in files
            }
            packed = io.BytesIO()
            _Pickler(packed, pickle.HIGHEST_PROTOCOL).dump(config)
        except Exception as error:
            problem = f"{child.name} cannot be sent to another process: {error_text(error)}"
            hint = f"Let its classes and functions be importable: put them {_INTO_A_MODULE}"
            raise SetupError(problem, node=node, hint=hint) from error
        self._config = packed.getvalue()

    def build(self, seen: Mapping[str, Any]) -> BuiltPart:
        """Build the child in this process: the calling thread makes all calls of it.

        The files imported by the configuration run first.

        Args:
            seen: What its backends see of their instance, see `headrace.isolation.ChildConfig.seen`.

        Raises:
            SetupError: The child could not be built, or does not name in ``reads`` a key that it describes as read. Its
                finished parts are closed again.
            PluginError: A plugin or a library is missing here, or raised.
        """
        for name, (path, batched) in self._registered.items():
            made_of = _imported(path)
            batched = batched and not isinstance(made_of, type)
            headrace.register(name, made_of, batched=batched, replace=True)
        try:
            config = pickle.loads(self._config)  # noqa: S301 - `__init__` has pickled it
        except ConfigError as error:
            raise SetupError(f"{self.name} cannot be built in another process: {error}") from error
        except Exception as error:
            problem = f"something in {self.name} is not known here: {error_text(error)}"
            raise SetupError(problem, hint=f"Put it {_INTO_A_MODULE}") from error
        runs = _Runs(self._asked, len(self.name))
        built = build(config, seen=seen, probes={"runs": lambda: runs})
        part = BuiltPart(built, runs, self.name, self._rerun)
        for name, key in _unread(part.describe(), {DATA, *part.keys}):
            part.close()
            problem = f"{name} reads the key {key!r}, as its describe() says, and its `reads` does not name it"
            hint = f"A request brings the keys of `reads` alone here: add {key!r} to `reads` of {name}."
            raise SetupError(problem, hint=hint)
        return part


class BuiltPart:
    """The child built by a `Part`: call it with ``built(batch)``, close it with ``close()``.

    Attributes:
        name: The child's name, as written.
        min, max: The child's range, as ``init`` has left it.
        rerun: Whether all backends in the child say ``rerun``.
        reads: The keys read by the child's backends, as ``init`` has left them.
        keys: The keys to send, if a request has them: ``reads`` and the reserved keys.
        needs: The keys without which a request cannot be run.
    """

    def __init__(self, built: BuiltExpression, runs: _Runs, name: str, rerun: bool) -> None:
        (self._backend,) = built.instances
        self._built, self._runs = built, runs
        self.name, self.rerun = name, rerun
        self.min, self.max = self._backend.min, self._backend.max
        self.reads, self.needs = built.reads, built.needs
        self.keys = tuple(sorted({*built.reads, *_SENT_ALWAYS} - {RESULT}))

    @property
    def lost(self) -> bool:
        """Whether the child can serve no more: a backend in it has raised InstanceLostError."""
        return self._built.lost

    def __call__(self, batch: list[Request]) -> Outcomes:
        """Run the child on a batch."""
        return self._backend(batch)

    def measured(self, batch: list[Request]) -> tuple[Outcomes, list[Any]]:
        """Run the child on a batch, and measure its backends.

        Returns:
            The outcomes, and what `headrace.isolation.ChildConfig.report` takes: plain values.
        """
        runs: list[Any] = []
        self._runs.kept = runs
        try:
            return self(batch), runs
        finally:
            self._runs.kept = None

    def describe(self) -> dict[str, Any]:
        """Return the tree of the child, as in ``Pipeline.describe()``."""
        return self._built.describe()

    def close(self) -> None:
        """Close all that was built, newest first, and log errors. A second call does nothing."""
        self._built.close()


def _unread(tree: Mapping[str, Any], keys: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield backend and key of each input that a described tree names and ``keys`` lacks."""
    built = tree.get("built")
    inputs = built.get("inputs") if isinstance(built, dict) else None
    for port in inputs.values() if isinstance(inputs, dict) else ():
        key = port.get("key") if isinstance(port, dict) else None
        if isinstance(key, str) and key not in keys:
            yield tree["name"], key
    for child in tree.get("children", ()):
        yield from _unread(child, keys)


class _Runs:
    """A probe that keeps the runs of backends, for the process of the container.

    Attributes:
        kept: What has been reported. None while nobody asks.
    """

    def __init__(self, methods: Iterable[str], root: int) -> None:
        self.kept: list[Any] | None = None
        self._root = root
        for method in methods:
            setattr(self, method, partial(self._keep, method))

    def _keep(self, event: str, _node: str, _instance: int, path: str, *about: Any) -> None:
        if self.kept is not None:
            self.kept.append((event, path[self._root :], about))


def _hands_on(element: Element) -> bool:
    """Tell whether an element is a word of core, or a container like this one, of which only the children count."""
    cls = element.cls
    return bool(element.children) and (element.distribution == "headrace" or cls.builds_elsewhere)


# A class that code has registered goes by its import path.


def _import_path(made_of: Any) -> str:
    """Return the import path of a registered class or function."""
    path = f"{made_of.__module__}:{made_of.__qualname__}"
    if _imported(path) is not made_of:
        raise pickle.PicklingError(f"{path} is another one now")
    return path


def _imported(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        return reduce(getattr, names.split("."), importlib.import_module(module))
    except Exception as error:
        raise PluginLoadError(f"{path} cannot be imported: {error_text(error)}") from error


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            problem = f"{obj.__qualname__} is part of the program itself, __main__"
            raise pickle.PicklingError(problem)
        return NotImplemented
