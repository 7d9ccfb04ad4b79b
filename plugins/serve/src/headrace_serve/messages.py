"""Requests and answers of the protocol, whichever transport they come by."""

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
        name, datatype, shape: As the protocol has them.
        array: Its elements; of BYTES objects of ``bytes`` or ``str``.
        parameters: Its parameters.
        placed: Of an output, where it was written to shared memory; it is not sent then.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    array: NDArray[Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    placed: Place | None = None


@dataclass(slots=True)
class Asked:
    """What a client asks for, whichever protocol it came by.

    Attributes:
        inputs: Its tensors.
        outputs: The names of the outputs it wants; None: all.
        id: Its identifier, ``""`` without.
        parameters: Its parameters.
        timeout_s: Seconds that its transport allows, or None.
        places: Where outputs are wanted in shared memory, by name.
        times: Takes the times that it has in the pipeline; None: nobody wants to know them.
        outline: What it was read from, where the same was read before.
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
    """What a client gets.

    Attributes:
        model: The model that has answered.
        id: That of the request.
        outputs: The tensors.
        inferences: How many rows, or items, were answered.
        parameters: Those of the answer.
    """

    model: Model
    id: str
    outputs: list[Tensor]
    inferences: int = 1
    parameters: dict[str, Any] = field(default_factory=dict)
