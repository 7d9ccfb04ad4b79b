"""The shape of a configuration.

It has the keys of nodes and of ``[global]``, and which key belongs where.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from headrace._language.config.document import Document, Table, Written
from headrace._language.config.problems import Problems, key_place
from headrace._language.contract.options import Options, keys_of
from headrace._run.requests.queue import QueueFull
from headrace._texts import nearest

_Name = Annotated[str, Field(min_length=1)]

AUTO: Final = "auto"
"""The value of ``instance_num`` for as many as the machine and the backends carry."""


class NodeKeys(Options):
    """The keys that configure a node itself.

    The options of its backends stand beside them in a table.

    Attributes:
        backend: The expression of what an instance computes.
        instance_num: How many instances run side by side; auto: what machine and backends carry.
        min: Least weight of a batch.
        max: Greatest weight of a batch; 1 if neither node nor backend says.
        batching_timeout: How long the oldest request waits for others, milliseconds.
        batch_sizes: The only weights that a batch may have.
        pad: Fill batches that are too small with copies.
        queue_size: How many requests that entered here may wait.
        queue_full: What happens to a request that finds the queue full.
        timeout_ms: Longest time from arrival to the end, milliseconds.
        device: The device, or a list that is spread over the instances.
        batch_policy: The policy that forms batches.
        dispatch_policy: The policy that chooses the instance.
        allow: Codes of warnings of `check` that are meant.
        init: An expression that is built before the node and never called.
    """

    backend: str | None = None
    instance_num: Annotated[int, Field(ge=1, le=4096)] | Literal["auto"] = 1
    min: int | None = Field(None, ge=1)
    max: int | None = Field(None, ge=1)
    batching_timeout: float = Field(0, ge=0, le=1e9)
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(None, min_length=1)
    pad: bool = False
    queue_size: int = Field(1024, ge=1)
    queue_full: QueueFull = "wait"
    timeout_ms: float | None = Field(None, gt=0, le=1e12)
    device: _Name | Annotated[tuple[_Name, ...], Field(min_length=1)] | None = None
    batch_policy: str = "greedy"
    dispatch_policy: str = "best_fit"
    allow: tuple[_Name, ...] = ()
    init: str | None = None

    @field_validator("instance_num", mode="wrap")
    @classmethod
    def _instances(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError as error:  # it has an error for each kind of value
            text = isinstance(value, str)
            expected = (
                f"expected a number or {AUTO!r}"
                if text
                else error.errors()[0]["msg"].removeprefix("Value error, ")
            )
            raise ValueError(expected) from None

    @field_validator("batch_sizes")
    @classmethod
    def _sizes(cls, sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if sizes is None else tuple(sorted(set(sizes)))

    @model_validator(mode="after")
    def _ranges(self) -> NodeKeys:
        least, most, sizes = self.min, self.max, self.batch_sizes
        if least is not None and most is not None and least > most:
            raise ValueError(f"min = {least} is above max = {most}")
        if sizes and most is not None and sizes[-1] > most:
            raise ValueError(f"the batch size {sizes[-1]} is above max = {most}")
        if sizes and least is not None and sizes[0] < least:
            raise ValueError(f"the batch size {sizes[0]} is below min = {least}")
        if self.instance_num == AUTO and isinstance(self.device, tuple):
            number = f"instance_num = {len(self.device)} has one instance on each"
            raise ValueError(
                f"instance_num = {AUTO!r} does not go with a list of devices: {number}"
            )
        return self


class GlobalKeys(Options):
    """The keys of ``[global]`` that configure the pipeline as a whole.

    Attributes:
        threads: The thread budget; default: the CPUs this process may use.
        probes: Probes of plugins, which receive every batch and request: Name or Name(a=1).
        deadlock_after_s: How long a request waits until circles of calls that wait for each other
            are looked for, seconds; 0 for never.
    """

    threads: int | None = Field(None, ge=1)
    probes: str | tuple[str, ...] = ()
    deadlock_after_s: float = Field(5.0, ge=0, le=1e9)


_Targets = _Name | Annotated[list[_Name], Field(min_length=1)]
_Sources = Annotated[dict[_Name, _Targets], Field(min_length=1)]
_EXPECTED = {
    "next": "expected the names of nodes",
    "each": "expected 'key' or 'key:target'",
    "map": "expected a table of sources and targets, "
    'map.a = {result = "data"}, or "a[result:data]"',
}


class LinkKeys(Options):
    """The keys that link a node to others, as written.

    `headrace._language.plan.links` parses their values.

    Attributes:
        next: The nodes that come after this one: a, or a,b, or a list.
        map: What this node gets: node[source:target,...],... or a table per node.
        otherwise: Run if the node before gave no result.
        each: Run once per element of the list under this key: key, or key:target.
        each_errors: An element that fails makes the request fail, or leaves none.
    """

    next: str | tuple[str, ...] = ()
    map: str | Annotated[dict[_Name, _Sources], Field(min_length=1)] | None = None
    otherwise: bool = Field(False, alias="or")
    each: str | None = None
    each_errors: Literal["fail", "none"] = "fail"

    @field_validator("next", "map", "each", mode="wrap")
    @classmethod
    def _check_shape(
        cls, value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise ValueError(_EXPECTED[str(info.field_name)]) from None


TOP_KEYS = ("extends", "ignore", "import", "global")
"""The keys that stand at the top of a configuration only."""

NODE_KEYS = tuple(NodeKeys.model_fields)
GLOBAL_KEYS = tuple(GlobalKeys.model_fields)
EXPRESSION_KEYS = ("backend", "init", "batch_policy", "dispatch_policy", "probes")
"""Keys whose value is an expression or a list of expressions; the parser replaces their
placeholders."""

LINK_KEYS = tuple(keys_of(LinkKeys))
NODE_ONLY = ("next", "map", "or", "each")
"""The link keys that cannot stand in ``[global]`` as the default of all nodes."""

_NAMES_ELSEWHERE = {
    "max": "batch batch_size max_batch max_batch_size",
    "batch_sizes": "preferred_batch_size preferred_batch_sizes",
    "instance_num": "workers num_workers workers_per_device instances num_instances "
    "instance_count instance_group replicas num_replicas",
    "batching_timeout": "batch_timeout batch_timeout_ms batching_timeout_ms batch_wait_timeout_s "
    "max_queue_delay max_queue_delay_ms max_queue_delay_microseconds max_latency_ms max_wait_ms",
    "device": "gpu gpus cuda accelerator",
    "queue_size": "max_queue_size max_queued_requests queue_length",
    "timeout_ms": "timeout deadline_ms default_timeout_microseconds",
}
KEYS_ELSEWHERE = {name: key for key, names in _NAMES_ELSEWHERE.items() for name in names.split()}
"""The names of node keys in other systems, and here: suggested for a key that is an option of no
backend."""


def key_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each key; see `PipelineConfig.key_schemas`."""
    links = _schemas(LinkKeys)
    only = {key: links.pop(key) for key in NODE_ONLY}
    return {"node": _schemas(NodeKeys) | links, "node_only": only, "global": _schemas(GlobalKeys)}


def _schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    for schema in properties.values():
        schema.pop("title", None)
    return properties


# Sorting the keys of a document by node.

MAIN = "main"
"""The name of the only node of a configuration without tables."""

_NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass
class Sections:
    """A configuration by its parts, every value as written.

    Attributes:
        nodes: The keys of each node, in file order.
        globals: The keys of ``[global]``, and those of the top level beside tables.
        file: The file that the user named, None for a dict.
    """

    nodes: dict[str, dict[str, Written]] = field(default_factory=dict)
    globals: dict[str, Written] = field(default_factory=dict)
    file: str | None = None

    def file_of(self, node: str) -> str | None:
        """Return the file that holds a node, None for a dict."""
        files = [written.file for written in self.nodes.get(node, {}).values()]
        return files[-1] if files else self.file


def read_sections(document: Document, problems: Problems) -> Sections:
    """Sort the keys of ``document`` by the part of the configuration to which they belong."""
    shape = Sections(file=document.file)
    before = len(problems)
    table = document.top.get("global")
    if isinstance(table, Table):
        shape.globals.update(table.keys)
    elif table is not None:
        hint = "Write [global] in a line of its own, and its keys below."
        problems.add("type", "[global] is a table", hint=hint, **_place("global", table))
    rest = {key: value for key, value in document.top.items() if key != "global"}
    if "backend" in rest and not isinstance(rest["backend"], Table):
        _add_node(rest, shape, problems)
    else:
        _add_nodes(rest, shape, problems)
    if not shape.nodes and len(problems) == before:
        place: dict[str, Any] = {"file": document.file}
        for like in (key for key in [*shape.globals][::-1] if nearest(key, ("backend",))):
            path = like if like in document.top else f"global.{like}"
            place = _place(like, shape.globals[like], path, at_key=True)
            place["suggestion"] = None if like == "backend" else "backend"
        hint = 'Write backend = "..." at the top, or a table per node that has a backend.'
        problems.add("no_node", "the configuration has no node", hint=hint, **place)
    return shape


def _add_node(rest: dict[str, Written], shape: Sections, problems: Problems) -> None:
    node = shape.nodes[MAIN] = {}
    for key, value in rest.items():
        if key in GLOBAL_KEYS and not isinstance(value, Table):
            _for_all(key, value, shape, problems)
        elif isinstance(value, Table) and "backend" in value.keys:
            written = value.keys["backend"]
            message = f"the table [{key}] has a backend, and so has the top level"
            hint = "Move the keys of the top level into a table of their own."
            place = _place("backend", written, f"{key}.backend", at_key=True)
            problems.add("two_shapes", message, hint=hint, **place)
        else:
            node[key] = value


def _add_nodes(rest: dict[str, Written], shape: Sections, problems: Problems) -> None:
    for key, value in rest.items():
        if not isinstance(value, Table):
            _for_all(key, value, shape, problems)
        elif not {*value.keys, *shape.globals} & {"backend"} and problems.nearest(key, ["global"]):
            message = f"the table [{key}] is no node, for it has no backend"
            hint = "Write [global], which holds the defaults of all nodes."
            place = _table_place(key, value)
            problems.add("unknown_table", message, suggestion="global", hint=hint, **place)
            shape.globals.update({**value.keys, **shape.globals})
        elif _NODE_NAME.fullmatch(key):
            shape.nodes[key] = value.keys
        else:
            message = f"{key!r} is no name for a node: a letter, then letters, digits, '_' and '-'"
            problems.add("node_name", message, **_table_place(key, value))


def _place(key: str, written: Written, path: str = "", *, at_key: bool = False) -> dict[str, Any]:
    """Return the place of a key for a problem; ``path`` is needed where it is not the key alone."""
    return key_place(written.file, path or key, key, written.value, at_key=at_key)


def _table_place(name: str, table: Table) -> dict[str, Any]:
    """Return the place of the name of a table for a problem."""
    span = (1, 1 + len(name))
    return {"file": table.file, "path": name, "text": f"[{name}]", "span": span}


def _for_all(key: str, value: Written, shape: Sections, problems: Problems) -> None:
    """Take a key of the top level for all nodes."""
    if shape.globals.setdefault(key, value) is not value:
        message = f"{key!r} stands at the top level and in [global]"
        problems.add("twice", message, **_place(key, value, at_key=True))
