"""The plan of a pipeline: what a configuration asks for, as frozen data. Nothing is built.

`headrace.PipelineConfig.plan` makes it, for a pipeline in service too::

    plan = headrace.PipelineConfig.load("line.toml").plan()
    for name, node in plan.nodes.items():
        print(name, node.instance_num, node.range, [one.name for one in node.tree.walk()])

`Plan.to_dict` gives what `headrace.explain` gives and ``headrace explain --json`` prints, and `Plan.json_schema`
the JSON Schema of that: a field that has a default is left out where it has it. Fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from pydantic.json_schema import SkipJsonSchema  # noqa: TC002 - pydantic evaluates the annotations

from headrace._run import settings
from headrace.errors import Problem

__all__ = ["Asked", "Element", "Links", "Node", "Plan", "Processes", "Range", "Value"]

Range = tuple[int, "int | None"]
"""The least and the greatest weight of a batch, both included; None for no bound."""


class _Data:
    """Base of the classes here, which can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; a field that has a default is left out where it has it, and what ``repr`` hides."""
        found = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            has_default = one.default is not MISSING or one.default_factory is not MISSING
            if one.repr and (value or not has_default):
                found[one.metadata.get("json", one.name)] = _plain_copy(value)
        return found


@dataclass(frozen=True)
class Value(_Data):
    """The value of a key or an option, and where it comes from.

    Attributes:
        value: The value, in a form that JSON can hold: a path is its text.
        origin: ``inline`` (args of an expression), ``node`` (a key of the node), ``global`` or ``default``.
    """

    value: Any
    origin: Literal["inline", "node", "global", "default"]


@dataclass(frozen=True)
class Element(_Data):
    """One backend of an expression, with its options and its bracket.

    Attributes:
        name: Its name, as written.
        distribution, version: Who brings it. For a registered class its module or file, and an empty version.
        options: Its options.
        range: The range of its class. ``init`` may narrow it.
        built: The answer of the built backend to `headrace.Pipeline.describe`. Empty in a plan.
        children: The elements in its bracket, all phases one after the other.
        waits: The reason why it may wait while it holds its instance.
        instance: The name of its instance: of an ``IoC``, or registered, as ``node.x``.
        target: The node it sends requests on to, as `headrace_flow.repost.Repost` does.
        own_thread: Whether a thread of its own is put around it.
        prefixes: The prefix before each child, as written. Empty where there is none.
        stateful: Whether its answers depend on earlier requests to the same process (`headrace.Backend`).
    """

    name: str
    distribution: str
    version: str
    options: Mapping[str, Value]
    range: Range
    built: Mapping[str, Any]
    children: tuple[Element, ...]
    waits: str | None = None
    instance: str | None = None
    target: str | None = None
    own_thread: bool = False
    prefixes: tuple[tuple[Any, ...], ...] = ()
    stateful: bool = False

    def walk(self) -> Iterator[Element]:
        """Return this element and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Links(_Data, settings.Links):
    """How a node is linked to the others: `headrace.blueprint.Links`, as JSON.

    In JSON ``otherwise`` is called ``or``, as the key is. ``name`` and ``calls`` are left out.
    """

    otherwise: Annotated[bool, Field(alias="or")] = field(default=False, metadata={"json": "or"})
    name: SkipJsonSchema[str] = field(default="", repr=False, compare=False)
    calls: SkipJsonSchema[tuple[str, ...]] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Processes(_Data):
    """The processes of a node.

    Attributes:
        count: How many.
        loads: How often they load each file of an option, all together, by its path.
    """

    count: int
    loads: Mapping[str, int]


@dataclass(frozen=True)
class Node(_Data):
    """One node.

    Attributes:
        expression: The expression of an instance.
        range: The range of its batches, as classes and keys state it. ``init`` may narrow it.
        instance_num: How many instances it has.
        alias_of: The other node, for an alias: a node whose whole backend is ``Forward[node.x]``. Else None.
        owns_thread: Whether its batches run in a thread of the instance's own.
        run_by: Who runs its batches: a ``"caller"`` may, only a ``"worker"`` does, since the node has a time limit,
            or the instance's ``"own thread"``.
        threads: How many threads one instance may use.
        next: The nodes after it.
        links: How it is linked to the others.
        keys: The keys of the node.
        tree: The expression of an instance.
        init: The expression of this key.
        processes: Its processes. None for none.
        picked_by: The batch policy, if it picks the requests of a batch. None if it takes them in their order.
        auto: Why ``instance_num = "auto"`` gives as many. None where the number is written.
        wide: Whether the last instance has all threads, and runs only what finds the node idle.
    """

    expression: str
    range: Range
    instance_num: int
    alias_of: str | None
    owns_thread: bool
    run_by: Literal["caller", "worker", "own thread"]
    threads: int
    next: tuple[str, ...]
    links: Links
    keys: Mapping[str, Value]
    tree: Element
    init: Element | None = None
    processes: Processes | None = None
    picked_by: str | None = None
    auto: str | None = None
    wide: bool = False

    @property
    def trees(self) -> tuple[Element, ...]:
        """All its expressions."""
        return (self.tree,) if self.init is None else (self.tree, self.init)


@dataclass(frozen=True)
class Asked(_Data):
    """A distribution needed by the configuration.

    Attributes:
        distribution, version: Its name and version. For registered classes their module or file, and an empty version.
        backends: The names of its backends in use, sorted.
    """

    distribution: str
    version: str
    backends: tuple[str, ...]


@dataclass(frozen=True)
class Plan(_Data):
    """The whole of a configuration.

    Attributes:
        headrace: The version of Headrace.
        threads: How many threads all instances together may use.
        asks_for: The distributions of its backends, policies and probes.
        warnings: The keys without effect, since a nearer value wins everywhere. ``headrace check`` warns of more.
        nodes: The nodes by name, in file order.
        probes: The probes, as written.
        roots: The nodes at which a request without ``node_name`` may begin, in file order: no other node leads to them. Not in JSON.
    """

    headrace: str
    threads: int
    asks_for: tuple[Asked, ...]
    warnings: tuple[Problem, ...]
    nodes: Mapping[str, Node]
    probes: tuple[str, ...] = ()
    roots: SkipJsonSchema[tuple[str, ...]] = field(default=(), repr=False, compare=False)

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema of what `to_dict` gives."""
        return TypeAdapter(Plan).json_schema(mode="serialization")


def _plain_copy(value: Any) -> Any:
    if isinstance(value, (_Data, Problem)):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain_copy(part) for key, part in value.items()}
    return [_plain_copy(part) for part in value] if isinstance(value, (list, tuple)) else value
