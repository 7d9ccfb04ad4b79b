"""The keys of a node, their types and defaults; and the keys that belong to ``[global]`` only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from headrace._options import Options

_Name = Annotated[str, Field(min_length=1)]


class NodeKeys(Options):
    """The keys that configure a node itself; options of its backends stand beside them."""

    backend: str | None = Field(None, description="The expression of what an instance computes.")
    instance_num: int = Field(1, ge=1, le=4096, description="How many instances run side by side.")
    min: int | None = Field(None, ge=1, description="Least weight of a batch.")
    max: int | None = Field(
        None, ge=1, description="Greatest weight of a batch; 1 if neither node nor backend says."
    )
    batching_timeout: float = Field(
        0, ge=0, le=1e9, description="How long the oldest request waits for company, milliseconds."
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, min_length=1, description="The only weights that a batch may have."
    )
    pad: bool = Field(False, description="Fill batches that are too small with copies.")
    queue_size: int = Field(1024, ge=1, description="How many requests that entered here may wait.")
    queue_full: Literal["wait", "reject", "shed_oldest"] = Field(
        "wait", description="What happens to a request that finds the queue full."
    )
    timeout_ms: float | None = Field(
        None, gt=0, le=1e12, description="Longest time from arrival to the end, milliseconds."
    )
    device: _Name | Annotated[tuple[_Name, ...], Field(min_length=1)] | None = Field(
        None, description="The device, or a list that is spread over the instances."
    )
    batch_policy: str = Field("greedy", description="The policy that cuts batches.")
    dispatch_policy: str = Field("best_fit", description="The policy that chooses the instance.")
    init: str | None = Field(
        None, description="An expression that is built before the node and never called."
    )
    node_entrypoint: str | None = Field(
        None, description="The expression of the node as a whole, in place of the default."
    )

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
        return self


class GlobalKeys(Options):
    """The keys of ``[global]`` that configure the pipeline as a whole."""

    entrypoint: str | None = Field(None, description="The expression of the pipeline's front.")
    threads: int | None = Field(
        None, ge=1, description="The thread budget; default: the CPUs this process may use."
    )
    probes: str | tuple[str, ...] = Field(
        (),
        description="Probes of plugins, which hear of every batch and request: Name or Name(a=1).",
    )
    timings: bool = Field(
        False, description="Whether stats() has mean and p99 of every element of an expression."
    )


_Targets = _Name | Annotated[list[_Name], Field(min_length=1)]
_Sources = Annotated[dict[_Name, _Targets], Field(min_length=1)]
_EXPECTED = {
    "next": "expected the names of nodes",
    "map": 'expected a table of sources and targets, map.a = {result = "data"}, or "a[result:data]"',
}


class LinkKeys(Options):
    """The keys that link a node to others, as written; `headrace._plan.links` reads what they say."""

    next: str | tuple[str, ...] = Field(
        (), description="The nodes that come after this one: a, or a,b, or a list."
    )
    map: str | Annotated[dict[_Name, _Sources], Field(min_length=1)] | None = Field(
        None, description="What this node gets: node[source:target,...],... or a table per node."
    )
    otherwise: bool = Field(
        False, alias="or", description="Run only where the node before gave no result."
    )
    each: str | None = Field(
        None, description="Run once per element of the list under this key: key, or key:target."
    )
    each_errors: Literal["fail", "none"] = Field(
        "fail", description="An element that fails makes the request fail, or leaves none."
    )

    @field_validator("next", "map", mode="wrap")
    @classmethod
    def _shaped(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(_EXPECTED[str(info.field_name)]) from None


NODE_KEYS = tuple(NodeKeys.model_fields)
GLOBAL_KEYS = tuple(GlobalKeys.model_fields)
EXPRESSION_KEYS = (
    "backend",
    "init",
    "node_entrypoint",
    "entrypoint",
    "batch_policy",
    "dispatch_policy",
    "probes",
)
"""Keys whose value is an expression, or a list of some: it is parsed first, then its placeholders are replaced."""

LINK_KEYS = tuple(field.alias or name for name, field in LinkKeys.model_fields.items())
NODE_ONLY = ("next", "map", "or", "each")
"""Those of `LINK_KEYS` that cannot be a default of all nodes."""

KEYS_ELSEWHERE = {
    **dict.fromkeys(("batch_size", "max_batch", "max_batch_size"), "max"),
    **dict.fromkeys(
        ("workers", "num_workers", "instances", "num_instances", "instance_count", "replicas"),
        "instance_num",
    ),
    **dict.fromkeys(
        ("batch_timeout", "batch_timeout_ms", "batching_timeout_ms", "max_queue_delay_ms"),
        "batching_timeout",
    ),
    **dict.fromkeys(("max_queue_size", "queue_length"), "queue_size"),
    **dict.fromkeys(("timeout", "deadline_ms"), "timeout_ms"),
}
"""What other systems call a key of a node, and its name here: meant where no backend has such an option."""


def key_schemas() -> dict[str, dict[str, Any]]:
    """Give the JSON Schema of each key, see `PipelineConfig.key_schemas`."""
    links = _schemas(LinkKeys)
    return {
        "node": {**_schemas(NodeKeys), **{k: v for k, v in links.items() if k not in NODE_ONLY}},
        "node_only": {key: links[key] for key in NODE_ONLY},
        "global": _schemas(GlobalKeys),
    }


def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = model.model_json_schema()["properties"]
    return {
        key: {k: value for k, value in schema.items() if k != "title"}
        for key, schema in properties.items()
    }
