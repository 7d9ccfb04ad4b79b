"""The inputs and outputs of a served model: read from the built pipeline, or declared in the model's entry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pydantic

from headrace import keys
from headrace.errors import SetupError, among
from headrace_serve.datatypes import of_dtype_name
from headrace_serve.models.entries import NO_INPUTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace_serve.models.entries import InputEntry, ModelEntry

__all__ = ["THROUGH", "Port", "Signature", "read_signature"]

THROUGH = (
    *("S", "Sequential", "BackgroundThread", "Reflect", "With", "DI", "Aspect", "Process"),
    *("StreamPool", "SyncTensor"),
)
"""Words that call the elements inside them in sequence, so that the first and the last one matter."""

_ONE_OF = ("Fallback", "ModelLoader")
"""Words that build one of their branches; the signature is that of the branch that was built."""

_NOTHING = ("Identity", *("ContiguousTensor", "CpuTensor", "FixTensor", "GpuTensor", "SyncTensor"))
"""Words that, without an element inside them, give what they get as the model takes it, or nothing: those around them matter."""


@dataclass(frozen=True)
class Port:
    """One input or output.

    Attributes:
        name: The name in the protocol.
        datatype: One of `headrace_serve.datatypes.DATATYPES`.
        shape: The length of each axis, -1 for any length. It includes the batch axis and the axis of items.
        key: The key under which the request of the pipeline holds an input. Not used for an output.
        each: Whether every element of the first axis is a request of its own.
        batch_axis: The axis along which the rows of one request lie, or None.
        text: Whether the model takes the elements as text, not as bytes.
        declared: Whether the model's entry declares this output, so that results are checked against it.
        optional: Whether requests may lack this input, since the model has a value for it, or answers this output.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    key: str = "data"
    each: bool = False
    batch_axis: int | None = None
    text: bool = False
    declared: bool = False
    optional: bool = False

    def fits(self, shape: Sequence[int], *, item: bool = False) -> bool:
        """Return whether a tensor of this port, or with ``item`` one item of it, may have a shape."""
        axes = self.shape[1:] if item else self.shape
        others = [want for want, got in zip(axes, shape, strict=False) if want not in (-1, got)]
        return len(axes) == len(shape) and not others


@dataclass(frozen=True)
class Signature:
    """All inputs and outputs of a model.

    Attributes:
        inputs: The inputs by name, in order.
        outputs: The outputs by name, in order.
        max_rows: The most rows that a batch of the entry node holds. None: any number.
        sequence_key: The key of a request that names its sequence, if the entry node keeps state by key, else None.
    """

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    max_rows: int | None = 1
    sequence_key: str | None = None

    @cached_property
    def by_item(self) -> bool:
        """Whether a request of the protocol becomes one request of the pipeline per item."""
        return any(port.each for port in self.inputs.values())

    @property
    def batched(self) -> bool:
        """Whether the first axis of every output, and of every input that is not optional, is the batch of one request."""
        ports = [*(p for p in self.inputs.values() if not p.optional), *self.outputs.values()]
        return bool(ports) and all(port.batch_axis == 0 for port in ports)


def read_signature(
    root: Mapping[str, Any],
    ends: Sequence[Mapping[str, Any]],
    entry: ModelEntry | None = None,
) -> Signature:
    """Return the signature of a pipeline.

    If the first backend of the entry node describes its inputs (those of ONNX Runtime, torch and TensorRT
    do), these are the inputs, and behind them those of ``optional_inputs``. Otherwise there is one input, ``data``, BYTES ``[-1]``, each element of
    which is a request. The outputs are those that the last backend of the last node describes,
    otherwise the one output ``result``, BYTES ``[-1]``.

    Args:
        root: The node at which requests enter, as ``pipe.describe()`` gives it. A node may have ``each`` if it runs once per
            element.
        ends: The nodes at which requests end.
        entry: The entry of the model. Inputs and outputs that it declares are not changed.

    Raises:
        SetupError: An input that the pipeline describes is a reserved key of requests, or one of several declared outputs is
            none of the model.
    """
    outputs = None if entry is None else entry.outputs
    if entry is not None and entry.inputs is not None:
        taken = {name: _said_input(name, said, entry) for name, said in entry.inputs.items()}
    else:
        taken = _read([root], "inputs", first=True) or _default_inputs()
        for name, port in taken.items():
            if port.key in NO_INPUTS:
                text = f"input {name!r} of the model is the key {port.key!r} of a request, which is reserved"
                raise SetupError(text, hint=f'Give it another key: inputs = {{{name} = "..."}}.')
    if outputs is not None:
        _check_outputs(outputs, _read(ends, "outputs", first=False))
        given = {
            name: Port(name, out.datatype, tuple(out.shape), declared=True, optional=out.optional)
            for name, out in outputs.items()
        }
    else:
        given = _read(ends, "outputs", first=False) or {"result": Port("result", "BYTES", (-1,))}
    if any(port.each for port in taken.values()):
        given = _of_items(given)
    elif outputs is not None and all(port.batch_axis == 0 for port in taken.values()):
        given = {name: replace(port, batch_axis=0) for name, port in given.items()}
    return Signature(taken, given, root["range"][1], _sequence_key(root))


def _sequence_key(root: Mapping[str, Any]) -> str | None:
    """Return the key of sequences that the outermost backend of the entry node describes (`StateFul` does)."""
    built = root["tree"]["built"]
    key = built.get("sequence_key") if isinstance(built, dict) else None
    return key if isinstance(key, str) else None


def _check_outputs(said: Mapping[str, Any], built: Mapping[str, Port]) -> None:
    """Check that the backend which describes its outputs has those that the entry declares, if these are several."""
    for name in said if built and len(said) > 1 else ():
        if name not in built:
            text = f"the entry declares an output {name!r}, which the model does not have"
            raise SetupError(text, hint=among(name, built))


def _default_inputs() -> dict[str, Port]:
    return {"data": Port("data", "BYTES", (-1,), each=True)}


def _said_input(name: str, declared: InputEntry, entry: ModelEntry) -> Port:
    axis = 0 if declared.batched else None
    shape = tuple(declared.shape)
    key, optional = entry.key_of(name), declared.optional
    return Port(name, declared.datatype, shape, key, declared.by_item, axis, optional=optional)


def _of_items(given: dict[str, Port]) -> dict[str, Port]:
    """Return the outputs of a model that is called per item, with the items as their first axis, as declared ones have them."""
    outputs = {}
    for name, port in given.items():
        axis = port.batch_axis
        shape = port.shape if axis is None else (*port.shape[:axis], *port.shape[axis + 1 :])
        known = (-1, *shape) if axis is not None else port.shape
        outputs[name] = replace(port, shape=known, batch_axis=None)
    return outputs


def _read(nodes: Sequence[Any], side: str, *, first: bool) -> dict[str, Port]:
    """Return the ports that the first, or last, backend of a node describes; ``{}`` for several nodes, or one with ``each``."""
    if len(nodes) != 1 or nodes[0].get("each"):
        return {}
    named: dict[str, Any] = {}
    elements = list(_elements(nodes[0]["tree"], named))
    if not elements:
        return {}
    element = elements[0] if first else elements[-1]
    built = element["built"] if isinstance(element["built"], dict) else {}
    ports = _ports(built.get(side))
    if first and (ports or not built.get(side)):
        keys_read = {port.key for port in ports.values()} | NO_INPUTS
        for name, port in _ports(built.get("optional_inputs")).items():
            if name not in ports and port.key not in keys_read:
                ports[name] = replace(port, optional=True)
    return ports


def _ports(about_all: Any) -> dict[str, Port]:
    """Return the ports that a backend describes; ``{}`` where it means something else."""
    ports: dict[str, Port] = {}
    try:
        described = _DESCRIBED.validate_python(about_all or {})
    except pydantic.ValidationError:
        return {}  # other plugins' backends may mean something else by this name
    for name, about in described.items():
        datatype = of_dtype_name(about.dtype)
        if datatype is None:
            return {}
        axis = about.batch_axis if about.batched and about.batch_axis < len(about.shape) else None
        shape = tuple(-1 if n is None else n for n in about.shape)
        text = datatype == "BYTES"
        ports[name] = Port(name, datatype, shape, about.key, batch_axis=axis, text=text)
    return ports


class _Described(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    dtype: str
    shape: list[int | None]
    batched: bool = True
    batch_axis: int = pydantic.Field(default=0, ge=0)
    key: str = keys.DATA


_DESCRIBED = pydantic.TypeAdapter(dict[str, _Described])
"""The descriptions of inputs and outputs by backends of models, by name."""


def _elements(tree: Mapping[str, Any], named: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the backends of a tree in the order in which they are called.

    A word with branches is returned itself, so that the backends of one branch are not taken for the whole word.
    """
    if tree["name"] in _NOTHING and (not tree["children"] or tree["name"] not in THROUGH):
        return
    if tree["name"] == "IoC":
        named.update({each.get("instance", each["name"]): each for each in tree["children"][:-1]})
    inner = _inner(tree)
    for child in inner:
        yield from _elements(child, named)
    if not inner:
        yield named.get(tree.get("instance", ""), tree) if not tree["built"] else tree


def _inner(tree: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the elements that a word calls in sequence; nothing if the word counts as one backend."""
    name, children = tree["name"], list(tree["children"])
    if name in THROUGH:
        return children
    if name in _ONE_OF:
        return [child for child in children if _is_built(child)]
    if name == "IoC":
        return children[-1:]
    if name == "CatSplit":
        return children[1:2]
    return []


def _is_built(tree: Mapping[str, Any]) -> bool:
    return bool(tree["built"]) or any(map(_is_built, tree["children"]))
