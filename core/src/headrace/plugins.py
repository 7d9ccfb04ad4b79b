"""For tools around plugins: what is installed and why not, and one expression without a pipeline.

What ``headrace plugins list`` shows, for programs::

    import headrace

    for plugin in headrace.plugins.installed():
        print(plugin.distribution, plugin.version, plugin.state, sorted(plugin.backends))
        if plugin.state != "ok":
            print(plugin.reason, plugin.remedy)

Names, versions and ranges are read from installed metadata. No backend is imported; of plugins only
the light modules with hooks are.

A test of a backend builds one expression and calls its instances itself, without a queue::

    with headrace.plugins.build({"backend": "Scale(factor=3)", "max": 4}) as built:
        outcomes = built.call([{"data": 1}, {"data": 2}])  # an exception or None per request
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from typing_extensions import Self

    from headrace import Backend, Options, PipelineConfig
    from headrace._plan import Element as PlannedElement
    from headrace._plan import NodePlan
    from headrace.keys import Request

__all__ = ["BuiltExpression", "Element", "Plugin", "build", "installed", "refresh", "resolve"]


@dataclass(frozen=True)
class Plugin:
    """What is known of one installed plugin.

    Attributes:
        plugin: The qualifier in ``plugin:Name``: the distribution's normalised name without a
            leading ``headrace-``.
        distribution: Name of the distribution, as installed.
        version: Its version, ``"unknown"`` where the metadata do not tell.
        range: The versions of core it asks for, as ``>=0.1,<0.2``; empty when it names none.
        backends: Per name of a backend its import path.
        hooks: What its hooks give, by their short names: ``definitions``, ``batch_policies``,
            ``dispatch_policies``, ``probes``, ``commands``, each a table, and ``node_entrypoint``.
        state: ``"ok"``; else ``"disabled"``, ``"incompatible"``, ``"broken"``,
            ``"missing_dependency"`` or ``"duplicate"``.
        reason: Why it is not ok, in a sentence; None when it is.
        remedy: What to do about that, or None.
    """

    plugin: str
    distribution: str
    version: str
    range: str
    backends: Mapping[str, str]
    hooks: Mapping[str, Any]
    state: str
    reason: str | None = None
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain data for JSON, as ``headrace plugins list --json`` prints it."""
        return asdict(self)


def installed(*, refresh: bool = False) -> list[Plugin]:
    """List the installed plugins by name, core not among them.

    Args:
        refresh: Read the metadata again, for what was installed since this process looked first.
    """
    from headrace._doctor.findings import light_findings, listed
    from headrace._registry import registry

    if refresh:
        registry.refresh()
    records = registry.plugins()
    return [Plugin(**row) for row in listed(records, light_findings(records))]


def refresh() -> None:
    """Read the metadata of what is installed again when it is next asked for."""
    from headrace._registry import registry

    registry.refresh()


@dataclass(frozen=True, eq=False)
class Element:
    """One name of an expression with what it means, as the configuration was checked.

    Attributes:
        name: The backend's name.
        cls: Its class.
        options: Its options, validated.
        distribution, version: Who brings it; for a registered class its module, and nothing.
        registered: Whether code registered the class, so that metadata do not tell of it.
        children: What stands in its bracket.
    """

    name: str
    cls: type[Backend]
    options: Options | None
    distribution: str
    version: str
    registered: bool
    children: tuple[Element, ...]

    def walk(self) -> list[Element]:
        """Give this element and all below it, parents first."""
        return [self, *(below for child in self.children for below in child.walk())]


class BuiltExpression:
    """The instances of one expression, which are called directly; made by `build`.

    Attributes:
        instances: What a node would call, ``instance_num`` of them.
        root: The object of the outermost name in the first instance; it may stand inside that.
    """

    def __init__(self, config: PipelineConfig) -> None:
        from headrace._build import build_pipeline

        plan = _only_node(config)
        self._built = build_pipeline(config._plan)
        (node,) = self._built.nodes.values()
        scheduled = node.scheduler.instances
        self.instances: list[Backend] = [one.backend for one in scheduled]
        self._threads = [one.thread for one in scheduled]
        self.root: Backend = node.by_element.get(id(plan.backend)) or self.instances[0]

    def call(self, batch: list[Request], index: int = 0) -> list[Exception | None]:
        """Call an instance in the thread that it belongs to; give an exception or None per request."""
        backend, thread = self.instances[index], self._threads[index]
        outcomes = backend(batch) if thread is None else thread.call(backend, batch)
        return [None] * len(batch) if outcomes is None else list(outcomes)

    def close(self) -> list[Exception]:
        """Close what was built, newest first; give what ``close`` raised. A second call does nothing."""
        errors = self._built.front_parts.close()
        for node in self._built.nodes.values():
            for parts in reversed(node.instances):
                errors += parts.close()
            node.scheduler.stop_runners()
            errors += node.parts.close()
        return errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def build(source: str | Path | Mapping[str, Any] | PipelineConfig) -> BuiltExpression:
    """Build the instances of one expression, as a pipeline of one node does.

    Args:
        source: A configuration of one node, as for `headrace.pipe`.

    Raises:
        ConfigError: The configuration is wrong.
        ValueError: It has several nodes.
        SetupError: A backend could not be built; what was built is closed again.
        PluginError: A plugin or a library is missing.
    """
    from headrace._config import PipelineConfig

    return BuiltExpression(PipelineConfig.load(source))


def resolve(source: str | Path | Mapping[str, Any] | PipelineConfig) -> Element | None:
    """Say what the expression of one node means: classes and checked options; nothing is built.

    Args:
        source: A configuration of one node, as for `headrace.pipe`.

    Returns:
        The outermost name, None where an instance is built from no expression.

    Raises:
        ConfigError: The configuration is wrong.
        ValueError: It has several nodes.
    """
    from headrace._config import PipelineConfig

    found = _only_node(PipelineConfig.load(source)).backend
    return None if found is None else _element(found)


def _only_node(config: PipelineConfig) -> NodePlan:
    names = config.nodes
    if len(names) != 1:
        raise ValueError(f"one node was expected, the configuration has {', '.join(names)}")
    return config._plan.nodes[names[0]]


def _element(planned: PlannedElement) -> Element:
    spec = planned.spec
    children = tuple(_element(child) for child in planned.children)
    return Element(
        name=spec.name,
        cls=planned.cls,
        options=planned.options,
        distribution=spec.distribution,
        version=spec.version,
        registered=spec.cls is not None,
        children=children,
    )
