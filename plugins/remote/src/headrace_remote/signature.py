"""The inputs and outputs of a model on a server, from its metadata and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

import headrace_tensors as tensors
from headrace.errors import SetupError

__all__ = ["DTYPES", "Port", "Signature", "read_signature"]

DTYPES: Final = {**tensors.DATATYPES, "BF16": np.dtype("<f4")}
"""The datatypes of the protocol, and the dtypes that requests and results have; BF16, which numpy lacks, is float32."""

_UNBOUNDED: Final = (1 << 31) - 1
"""``max_batch_size`` of a model of ``headrace serve`` that takes batches of any size."""

_OTHER_KEYS: Final = (
    *("context", "request_id", "request_size", "result"),
    *("sequence_id", "sequence_start", "sequence_end"),
)
"""Keys of a request that mean something else than an input."""


@dataclass(frozen=True)
class Port(tensors.Port):
    """One input or output.

    Attributes:
        datatype: One of `DTYPES`.
        key: The key of the request for an input, ``""`` for an output.
    """

    datatype: str = ""
    key: str = ""


@dataclass(frozen=True)
class Signature(tensors.Signature):
    """Inputs and outputs of a model, in the server's order, and how many rows one call may have.

    Attributes:
        keys: The keys of requests by input name.
        max_rows: The most rows of a call. None: any number.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    max_rows: int | None = None

    @cached_property
    def usual(self) -> tuple[str, np.dtype[Any], tuple[int, ...] | None] | None:
        """Key, dtype and shape of samples of the only input, where arrays are sent as they are; else None."""
        if len(self.inputs) != 1:
            return None
        port: Port = self.inputs[0]
        usual = port.batched and port.datatype not in ("BYTES", "BF16")
        return (port.key, DTYPES[port.datatype], port.exact) if usual else None

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """The places of optional inputs without batch axis, whose value all requests of a call share."""
        return tuple(
            place for place, port in enumerate(self.inputs) if port.optional and not port.batched
        )

    @cached_property
    def sequences(self) -> bool:
        """Whether the keys of sequences are read as such: none of them is an input."""
        return not any(port.key.startswith("sequence_") for port in self.inputs)

    @cached_property
    def one_array(self) -> bool:
        """Whether there is one output only, whose rows are arrays."""
        port = self.outputs[0]
        return len(self.outputs) == 1 and port.batched and port.datatype != "BYTES"


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
    for each in (*metadata.inputs, *metadata.outputs):
        if each.datatype not in DTYPES:
            raise SetupError(
                f"{each.name!r} of the model has the datatype {each.datatype!r}",
                hint=f"The protocol has: {', '.join(DTYPES)}.",
            )
    names_in = [port.name for port in metadata.inputs]
    names_out = [port.name for port in metadata.outputs]
    if not names_in or not names_out:
        raise SetupError(
            "the server names no inputs, or no outputs, of the model",
            hint="A model of KServe names them in get_input_types and get_output_types, one of MLServer in inputs and "
            "outputs of its model-settings.json.",
        )
    tensors.refuse_unknown("outputs", outputs or (), names_out)
    tensors.refuse_unknown("unbatched", unbatched, [*names_in, *names_out])
    names = names_out if outputs is None else list(outputs)
    by_name = {p.name: p for p in metadata.outputs}
    max_batch_size = None if config is None else int(config.max_batch_size)
    optional = {} if config is None else {o.name: len(o.dims) for o in config.input if o.optional}
    needed = [p for p in metadata.inputs if p.name not in optional]
    used = [*needed, *(by_name[name] for name in names)]
    whole = _is_batched(used, max_batch_size, by_item=by_item, unbatched=unbatched, batched=batched)
    whole = whole and bool(needed)  # else nothing says how many rows a call has

    def port(meta: Any, key: str = "") -> Port:
        shape = tuple(None if n < 0 else n for n in meta.shape)
        has_axis = whole and meta.name not in unbatched and shape[:1] == (None,)
        if max_batch_size:  # then the dims lack the batch axis
            has_axis = has_axis and optional.get(meta.name) != len(shape)
        dtype = "BYTES" if meta.datatype == "BYTES" else DTYPES[meta.datatype].name
        return Port(
            meta.name, dtype, shape, has_axis, meta.datatype, key, optional=meta.name in optional
        )

    every = tensors.Signature(tuple(port(p) for p in metadata.inputs))
    read = tensors.choose_keys(every, keys, _OTHER_KEYS)
    inputs = tuple(port(o, read[o.name]) for o in metadata.inputs if o.name in read)
    gives = tuple(port(by_name[name]) for name in names)
    alone = not whole or not all(p.batched or p.optional for p in (*inputs, *gives))
    bounded = max_batch_size is not None and 0 < max_batch_size < _UNBOUNDED
    most = max_batch_size if bounded else None
    return Signature(inputs, gives, keys=read, max_rows=1 if alone else most)


def _is_batched(
    used: list[Any],
    max_batch_size: int | None,
    *,
    by_item: bool,
    unbatched: tuple[str, ...],
    batched: bool | None,
) -> bool:
    """Return whether the model has a batch axis at all."""
    open_ended = [
        port.name
        for port in used
        if len(port.shape) and port.shape[0] == -1 and port.name not in unbatched
    ]
    if batched is None:
        if max_batch_size is None or by_item:
            return bool(open_ended)
        return max_batch_size > 0
    if batched:
        fixed = [port.name for port in used if port.name not in open_ended]
        if fixed:
            raise SetupError(
                f"batched = true, but the first axis of {fixed[0]!r} is not of any length: "
                f"the server says {list(next(o for o in used if o.name == fixed[0]).shape)}",
                hint="Leave batched out.",
            )
    return batched
