"""For tools around plugins.

The installed plugins with their states, and one expression without a pipeline.

A program gets what ``headrace plugins list`` shows so::

    import headrace

    for plugin in headrace.plugins.installed():
        print(plugin.distribution, plugin.version, plugin.state, sorted(plugin.backends))
        if plugin.state != "ok":
            print(plugin.reason, plugin.remedy)

Names, versions and ranges are read from installed metadata. No backend is imported, only the light
modules with hooks. `Plugin.backend` and `Plugin.load` import what a plugin names, with errors that
say what to do.

A test of a backend builds one expression and calls its instances itself, without a queue::

    with headrace.plugins.build({"backend": "Scale(factor=3)", "max": 4}) as built:
        outcomes = built.call([{"data": 1}, {"data": 2}])  # an exception or None per request

A backend reads a file of labels, a charset or any other text with `read_lines` or `read_text`, so
that one file means the same to all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from headrace._language.contract.addresses import is_address, origin_of
from headrace._language.contract.texts import read_lines, read_text
from headrace._language.registry.discovery import CORE, KNOWN_ELSEWHERE, Plugin, qualifier
from headrace._language.registry.files import located, reads, records_of, tables_of
from headrace._language.registry.registry import registry
from headrace._run.process import usable_cpus
from headrace._run.records.probes import PROBE_METHODS
from headrace._run.requests import deadlocks
from headrace._run.steps import threads
from headrace.errors import MissingDependencyError, Problem
from headrace.keys import DATA, Request

if TYPE_CHECKING:
    from headrace._language.contract.backend import Backend
    from headrace._language.plan.element import Element
    from headrace._language.plan.nodes import NodePlan
    from headrace._language.plan.pipeline_config import PipelineConfig
    from headrace.blueprint import BatchPolicy, DispatchPolicy
else:  # for who asks what the annotations mean: their modules import pydantic
    Backend = BatchPolicy = DispatchPolicy = Element = PipelineConfig = Any

__all__ = [
    "KNOWN_BACKENDS",
    "PROBE_METHODS",
    "BuiltExpression",
    "Plugin",
    "build",
    "core",
    "import_file",
    "installed",
    "is_address",
    "library",
    "located",
    "origin_of",
    "policies",
    "qualifier",
    "read_lines",
    "read_text",
    "reads",
    "records_of",
    "refresh",
    "resolve",
    "tables_of",
    "threads_apart",
    "usable_cpus",
    "why_unknown",
]

KNOWN_BACKENDS: Mapping[str, str] = KNOWN_ELSEWHERE
"""Names of well-known backends, installed or not, and the distribution to install for each."""


def installed() -> list[Plugin]:
    """List the installed plugins by name, core not among them.

    Their metadata are read by the first call. `refresh` finds plugins installed since.
    """
    return list(registry.plugins(hooks=True))


def refresh() -> None:
    """Read the metadata of installed plugins again at the next call that needs them."""
    registry.refresh()


def core() -> Plugin:
    """Return Headrace itself as if it were a plugin: its backends and policies."""
    return CORE


def import_file(path: str | Path) -> ModuleType:
    """Run a Python file as ``import`` of a configuration does, and return its module.

    It is a module of a package of its own folder: its imports find the files beside it first. It is
    run once, and again when it or one of these has changed.

    Raises:
        PluginLoadError: There is no such file, or it raised.
    """
    from headrace._language.registry.imports import run_import
    from headrace._language.registry.packages import package_of

    file = Path(path).resolve()
    run_import(str(file), file.parent)
    return sys.modules[package_of(file.parent).module_name(file)]


def why_unknown(name: str, known: Iterable[str] = ()) -> Problem:
    """Say why a name is unknown, and what to do: install or repair a plugin, or correct the name.

    Args:
        name: The name of a backend or anything else, perhaps ``plugin:Name``.
        known: Names of which the nearest one is suggested.
    """
    return registry.unknown(name, known)


@contextmanager
def threads_apart(clock: Callable[[], float]) -> Iterator[None]:
    """Run pipelines on a clock, a timer and a pool of threads apart from all others.

    It holds for pipelines made in the block. The end of the block closes them, without waiting for
    requests that have not begun. It is for test tools that decide when threads run and what time it
    is. They end the threads afterwards. See ``headrace_testing.virtual_time``. One such block at a
    time, in a process.

    Args:
        clock: Gives the value of ``time.monotonic()`` in the block.
    """
    with threads.apart(clock) as own_threads:
        try:
            yield
        finally:
            for engine in [*deadlocks.engines]:
                if engine.box.threads is own_threads and engine.state != "closed":
                    engine.close(drain=False, timeout=30.0)


class BuiltExpression:
    """The instances of one expression, which are called directly. Made by `build`.

    Attributes:
        instances: The backends that a node would call, ``instance_num`` of them.
        root: The backend of the outermost name in the first instance. Another backend may stand
            around it.
        reads: The keys that the backends read, as their ``init`` has left them.
        needs: The keys without which a request is refused.
    """

    def __init__(
        self,
        config: PipelineConfig,
        seen: Mapping[str, Any] | None = None,
        probes: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        from headrace._language.building.builder import ComposedNode
        from headrace._language.building.compose import compose
        from headrace._language.plan.key_use import keys_read_by
        from headrace._run.starting import start

        plan, blueprint = _only_node(config), compose(config, seen=seen)
        self._blueprint = replace(blueprint, probes={**blueprint.probes, **(probes or {})})
        (self._node,) = start(self._blueprint).values()
        self._scheduled = self._node.node.instances
        self.instances = [cast("Backend", instance.backend) for instance in self._scheduled]
        assert isinstance(self._node, ComposedNode)  # noqa: S101 - so does `compose`
        self._element, self._by_element = plan.tree, self._node.elements.by_element
        root = self._by_element.get(plan.tree)
        self.root: Backend = root or self.instances[0]
        read = keys_read_by(plan.tree, self._by_element)
        self.reads = tuple(sorted({DATA, *filter(None, read)}))
        self.needs = tuple(self._node.node.needs)
        for instance in self._scheduled if seen is not None else ():
            instance.liveness.node = None  # its requests come from another process, past the queue

    @property
    def lost(self) -> bool:
        """Whether an instance can serve no more: a backend in it has raised InstanceLostError."""
        return any(instance.liveness.lost for instance in self._scheduled)

    def call(self, batch: list[Request], index: int = 0) -> list[Exception | None]:
        """Call an instance in the thread that owns it, if any.

        Give an exception or None per request.

        A request that the backend keeps as `headrace.PENDING` is waited for.
        """
        from headrace._run.batches.direct import call_directly

        return call_directly(self._node.node, self._scheduled[index], batch)

    def describe(self) -> dict[str, Any]:
        """Return the tree of the instances, as in ``Pipeline.describe()``.

        Empty without an expression.
        """
        return self._element.to_dict(self._by_element)

    def close(self) -> list[Exception]:
        """Close all that was built, newest first; give the errors. A second call does nothing."""
        return list(self._blueprint.close())

    def __enter__(self) -> BuiltExpression:  # noqa: PYI034 - Self: Python 3.11
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def build(
    source: str | Path | Mapping[str, Any] | PipelineConfig,
    *,
    seen: Mapping[str, Any] | None = None,
    probes: Mapping[str, Callable[[], object]] | None = None,
) -> BuiltExpression:
    """Build the instances of one expression, as a pipeline of one node does.

    Args:
        source: A configuration of one node, as for `headrace.pipe`.
        seen: For a child of a container in another process, what its backends see in their context:
            its `headrace.isolation.ChildConfig.seen`. No backend gets a thread: the caller makes
            all calls.
        probes: Makers of further probes, by name.

    Raises:
        ConfigError: The configuration is wrong.
        ValueError: The configuration has several nodes.
        SetupError: A backend could not be built. What was built is closed again.
        PluginError: A plugin or a library is missing.
    """
    return BuiltExpression(_config_of(source), seen, probes)


def resolve(source: str | Path | Mapping[str, Any] | PipelineConfig) -> Element:
    """Return the meaning of one node's expression: classes and checked options. Nothing is built.

    Args:
        source: A configuration of one node, as for `headrace.pipe`. `headrace.plan` has those of
            several.

    Returns:
        The outermost name.

    Raises:
        ConfigError: The configuration is wrong.
        ValueError: The configuration has several nodes.
    """
    return _only_node(_config_of(source)).tree


def policies(
    source: str | Path | Mapping[str, Any] | PipelineConfig,
) -> dict[str, tuple[BatchPolicy, DispatchPolicy]]:
    """Make the policies of each node, as a pipeline of this configuration would have them.

    They are new objects, for a test or a simulation that calls them with a clock of its own. For a
    class that is named for both keys there is one object.

    Args:
        source: A configuration, as for `headrace.pipe`.

    Returns:
        The batch policy and the dispatch policy of each node, by its name.

    Raises:
        ConfigError: The configuration is wrong.
        SetupError: The class of a policy raised.
    """
    from headrace._language.building.compose import compose

    blueprint = compose(_config_of(source))
    return {name: node.policies() for name, node in blueprint.nodes.items()}


def _config_of(source: str | Path | Mapping[str, Any] | PipelineConfig) -> PipelineConfig:
    from headrace._language.plan.pipeline_config import PipelineConfig

    return PipelineConfig.load(source)


def _only_node(config: PipelineConfig) -> NodePlan:
    names = config.nodes
    if len(names) != 1:
        raise ValueError(f"one node was expected, the configuration has {', '.join(names)}")
    return config._plan.nodes[names[0]]


def library(name: str, install: str, purpose: str = "") -> Any:
    """Import a library that not every user of a plugin needs.

    Args:
        name: The module, as ``"paho.mqtt.client"``.
        install: What brings it, as ``"headrace-vision[mqtt]"``.
        purpose: What needs it, as ``"calibration"``.

    Raises:
        MissingDependencyError: It cannot be imported. The error has the command that installs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        message = (
            f"{purpose and f'{purpose}: '}{name.partition('.')[0]} cannot be imported: {error}"
        )
        by, hint = install.partition("[")[0], f'Type `pip install "{install}"`.'
        raise MissingDependencyError(message, distribution=by, hint=hint) from error
