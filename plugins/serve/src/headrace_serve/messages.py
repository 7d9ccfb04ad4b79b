"""Requests and answers of the protocol, the same for HTTP and gRPC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace_serve.models import Model
    from headrace_serve.outlines import Outline
    from headrace_serve.run_times import RunTimes
    from headrace_serve.shared_memory import Place

__all__ = ["Answer", "Asked", "Tensor"]


@dataclass(slots=True)
class Tensor:
    """A tensor of a request or an answer.

    Attributes:
        name: The name of the input or output.
        datatype: One of `headrace_serve.datatypes.DATATYPES`.
        shape: The length of each axis.
        array: The elements; for BYTES, objects of type ``bytes`` or ``str``.
        parameters: The parameters of the tensor.
        placed: Whether an output was written to shared memory, so that its elements are not sent.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: NDArray[Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    placed: bool = False


@dataclass(slots=True)
class Asked:
    """What a client asks for in a request of inference.

    Attributes:
        inputs: The tensors of the request.
        outputs: The names of the outputs that the client wants; None: all.
        id: The identifier of the request, ``""`` without one.
        parameters: The parameters of the request.
        timeout_s: The deadline of the gRPC call in seconds from now, or None.
        places: The places in shared memory to which outputs are to be written, by the outputs' names.
        times: Records when the requests wait and run in the pipeline; None: it is not measured.
        outline: The outline that the request shares with an earlier one; None: it was read anew.
    """

    inputs: list[Tensor]
    outputs: list[str] | None = None
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    places: dict[str, Place] = field(default_factory=dict)
    times: RunTimes | None = None
    outline: Outline | None = None


@dataclass(slots=True)
class Answer:
    """The answer to a request of inference.

    Attributes:
        model: The model that has answered.
        id: The identifier of the request.
        outputs: The tensors.
        inferences: The number of rows, or items, that succeeded.
        parameters: The parameters of the answer.
    """

    model: Model
    id: str
    outputs: list[Tensor]
    inferences: int = 1
    parameters: dict[str, Any] = field(default_factory=dict)
