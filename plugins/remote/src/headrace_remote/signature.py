"""The inputs and outputs of a model on a server, from its metadata and configuration."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import SetupError
from headrace_tensors import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DTYPES", "Port", "Signature", "read_signature"]

DTYPES: Final = {**DATATYPES, "BF16": np.dtype("<f4")}
"""The datatypes of the protocol, and the dtypes that requests and results have; BF16, which numpy lacks, is float32."""

_UNBOUNDED: Final = (1 << 31) - 1
"""``max_batch_size`` of a model of ``headrace serve`` that takes batches of any size."""

_OTHER_KEYS: Final = (
    *("context", "request_id", "request_size", "result"),
    *("sequence_id", "sequence_start", "sequence_end"),
)
"""Keys of a request that mean something else than an input."""


@dataclass(frozen=True)
class Port:
    """One input or output.

    Attributes:
        name: The name in the protocol.
        datatype: One of `DTYPES`.
        shape: The length of each axis, -1 for any length, the batch axis included.
        key: The key of the request for an input, ``""`` for an output.
        batched: Whether the first axis is the batch axis.
        optional: Whether a request may lack this input, since the model has a value for it.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    key: str
    batched: bool
    optional: bool = False

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays in requests and results."""
        return DTYPES[self.datatype]

    @cached_property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample, without the batch axis."""
        return self.shape[1:] if self.batched else self.shape

    def text(self) -> str:
        """Return dtype and shapes as text for errors."""
        name = "bytes or str" if self.datatype == "BYTES" else DTYPES[self.datatype].name
        whole = f"{name} {_axes(self.shape)}"
        if not self.batched:
            return whole
        return f"{name} {_axes(self.shape[1:])} (one sample) or {whole} (`request_size` rows)"

    def describe(self) -> dict[str, Any]:
        """Return dtype and shape for `describe`; `None` is an axis of any length."""
        dtype = "BYTES" if self.datatype == "BYTES" else DTYPES[self.datatype].name
        shape = [None if n < 0 else n for n in self.shape]
        return {"dtype": dtype, "shape": shape, "batched": self.batched}


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a model, and how many rows one call may have.

    Attributes:
        inputs, outputs: The ports in the server's order. Outputs are those that are asked for.
        batched: Whether several requests go in one call.
        max_rows: The most rows of a call. None: any number.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batched: bool
    max_rows: int | None

    @cached_property
    def usual(self) -> Port | None:
        """The only input, where arrays are sent as they are; else None."""
        if len(self.inputs) != 1:
            return None
        one = self.inputs[0]
        return one if one.batched and one.datatype not in ("BYTES", "BF16") else None

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """The places of optional inputs without batch axis, whose value all requests of a call share."""
        return tuple(
            place for place, one in enumerate(self.inputs) if one.optional and not one.batched
        )

    @cached_property
    def sequences(self) -> bool:
        """Whether the keys of sequences are read as such: none of them is an input."""
        return not any(one.key.startswith("sequence_") for one in self.inputs)

    @cached_property
    def one_array(self) -> bool:
        """Whether there is one output only, whose rows are arrays."""
        one = self.outputs[0]
        return len(self.outputs) == 1 and one.batched and one.datatype != "BYTES"


def _axes(shape: Iterable[int]) -> str:
    return f"[{', '.join('*' if n < 0 else str(n) for n in shape)}]"


def _refuse_unknown(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            asked = f"Did you mean {near[0]!r}? " if near else ""
            raise SetupError(
                f"{option} names {name!r}, which the model does not have",
                hint=f"{asked}It has: {', '.join(known)}.",
            )


def read_signature(
    metadata: Any,
    *,
    config: Any,
    by_item: bool,
    keys: Mapping[str, str],
    outputs: tuple[str, ...] | None,
    unbatched: tuple[str, ...],
    batched: bool | None,
) -> Signature:
    """Read the signature of a model.

    Args:
        metadata: The server's ``ModelMetadataResponse``.
        config: The server's ``ModelConfig``. None where it has none. Its ``input`` says which inputs are optional,
            and by the number of ``dims`` which of them have a batch axis.
        by_item: Whether the server takes each element of the first axis as a request of its own.
        keys: The option ``inputs``.
        outputs: The option ``outputs``.
        unbatched: The option ``unbatched``.
        batched: The option ``batched``.

    Raises:
        SetupError: An option names what the model does not have, a datatype is unknown, or ``batched`` does not fit.
    """
    for one in (*metadata.inputs, *metadata.outputs):
        if one.datatype not in DTYPES:
            raise SetupError(
                f"{one.name!r} of the model has the datatype {one.datatype!r}",
                hint=f"The protocol has: {', '.join(DTYPES)}.",
            )
    names_in = [one.name for one in metadata.inputs]
    names_out = [one.name for one in metadata.outputs]
    if not names_in or not names_out:
        raise SetupError(
            "the server names no inputs, or no outputs, of the model",
            hint="A model of KServe names them in get_input_types and get_output_types, one of MLServer in inputs and "
            "outputs of its model-settings.json.",
        )
    _refuse_unknown("inputs", keys, names_in)
    _refuse_unknown("outputs", outputs or (), names_out)
    _refuse_unknown("unbatched", unbatched, [*names_in, *names_out])
    wanted = names_out if outputs is None else list(outputs)
    by_name = {one.name: one for one in metadata.outputs}
    max_batch_size = None if config is None else int(config.max_batch_size)
    optional = {} if config is None else {o.name: len(o.dims) for o in config.input if o.optional}
    needed = [one for one in metadata.inputs if one.name not in optional]
    used = [*needed, *(by_name[name] for name in wanted)]
    whole = _is_batched(used, max_batch_size, by_item=by_item, unbatched=unbatched, said=batched)
    whole = whole and bool(needed)  # else nothing says how many rows a call has

    def port(one: Any, key: str) -> Port:
        shape = tuple(one.shape)
        has_axis = whole and one.name not in unbatched and bool(shape) and shape[0] == -1
        if max_batch_size:  # then the dims lack the batch axis
            has_axis = has_axis and optional.get(one.name) != len(shape)
        return Port(one.name, one.datatype, shape, key, has_axis, one.name in optional)

    read = _keys_of([one.name for one in needed], optional, keys)
    inputs = tuple(port(o, read[o.name]) for o in metadata.inputs if o.name in read)
    given = tuple(port(by_name[name], "") for name in wanted)
    alone = not whole or not all(one.batched or one.optional for one in (*inputs, *given))
    bounded = max_batch_size is not None and 0 < max_batch_size < _UNBOUNDED
    most = max_batch_size if bounded else None
    return Signature(inputs, given, not alone, 1 if alone else most)


def _keys_of(needed: list[str], optional: Iterable[str], keys: Mapping[str, str]) -> dict[str, str]:
    """Return the key of the request by input name, without optional inputs whose name is a key that is read already."""
    alone = {needed[0]: "data"} if len(needed) == 1 else {name: name for name in needed}
    read = {**alone, **keys}
    taken = {*read.values(), *_OTHER_KEYS}
    return {**{name: name for name in optional if name not in taken}, **read}


def _is_batched(
    used: list[Any],
    max_batch_size: int | None,
    *,
    by_item: bool,
    unbatched: tuple[str, ...],
    said: bool | None,
) -> bool:
    """Return whether the model has a batch axis at all."""
    open_ended = [
        one.name
        for one in used
        if len(one.shape) and one.shape[0] == -1 and one.name not in unbatched
    ]
    if said is None:
        if max_batch_size is None or by_item:
            return bool(open_ended)
        return max_batch_size > 0
    if said:
        fixed = [one.name for one in used if one.name not in open_ended]
        if fixed:
            raise SetupError(
                f"batched = true, but the first axis of {fixed[0]!r} is not of any length: "
                f"the server says {list(next(o for o in used if o.name == fixed[0]).shape)}",
                hint="Leave batched out.",
            )
    return said
