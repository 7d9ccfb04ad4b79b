"""Requests and answers of the protocol, the same for HTTP and gRPC."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_serve.datatypes import from_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace_serve.inference.parsed_requests import ParsedRequest
    from headrace_serve.models.model import Model
    from headrace_serve.monitoring.run_times import RunTimes

__all__ = ["Answer", "Asked", "Encoded", "Tensor"]


@dataclass(slots=True)
class Tensor:
    """A tensor of an answer, or of a request once its elements are read.

    Attributes:
        name: The name of the input or output.
        datatype: One of `headrace_serve.datatypes.DATATYPES`.
        shape: The length of each axis.
        array: The elements. For BYTES, objects of type ``bytes`` or ``str``.
        parameters: The parameters of the tensor.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: NDArray[Any]
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Encoded:
    """An input of a request, the elements of which are not read yet.

    Attributes:
        name, datatype, shape: As in `Tensor`. The data may turn out not to have that shape.
        data: The elements as they were sent.
        read: Reads them, for name, datatype, shape and data.
        parameters: The parameters of the input that are for the pipeline.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any
    read: Callable[[str, str, tuple[int, ...], Any], NDArray[Any]] = from_bytes
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """The elements that Python reads one by one: those of BYTES, and those in JSON and in lists of gRPC."""
        if self.datatype != "BYTES" and self.read is from_bytes:
            return 0
        return math.prod(self.shape)

    def array(self) -> NDArray[Any]:
        """Read the elements.

        Raises:
            InputError: The data is not what datatype and shape say.
        """
        return self.read(self.name, self.datatype, self.shape, self.data)


@dataclass(slots=True)
class Asked:
    """What a client asks for in a request of inference.

    Attributes:
        inputs: The tensors of the request.
        outputs: The names of the outputs that the client wants. None: all.
        id: The identifier of the request, ``""`` without one.
        parameters: The parameters of the request.
        timeout_s: The deadline of the gRPC call in seconds from now, or None.
        times: Records when the requests wait and run in the pipeline. None: it is not measured.
        classes: The number of classes that the client wants of outputs, by their names.
        client: The key of the client and the number of keys, as the ``context`` of the request has them. Empty without keys.
        request_id: The id of the request where ``id`` is ``""``: that of the header ``X-Request-Id``.
        parsed: What the request shares with an earlier one. None: it was read anew.
        fields: The keys of the pipeline's request that the fields of a model's JSON give. None: its inputs are tensors.
    """

    inputs: list[Encoded]
    outputs: list[str] | None = None
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    times: RunTimes | None = None
    parsed: ParsedRequest | None = None
    request_id: str = ""
    classes: dict[str, int] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] | None = None


@dataclass(slots=True)
class Answer:
    """The answer to a request of inference.

    Attributes:
        model: The model that has answered.
        id: The identifier of the request.
        outputs: The tensors.
        inferences: The number of rows, or items, that succeeded.
        parameters: The parameters of the answer.
        by_name: Whether the outputs are values of a dict, and not the result itself.
    """

    model: Model
    id: str
    outputs: list[Tensor]
    inferences: int = 1
    parameters: dict[str, Any] = field(default_factory=dict)
    by_name: bool = True
