"""Remembers requests without the bytes of their tensors: clients repeat them, so each is parsed only once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Outline", "Outlines"]

T = TypeVar("T")

_MOST = 256
_MOST_BYTES = 4096


@dataclass(slots=True)
class Outline:
    """A request for one model, without the bytes of its tensors.

    Attributes:
        inputs: Name, datatype, shape and number of bytes of each tensor.
        outputs, parameters: As in `headrace_serve.inference.messages.Asked`.
        wanted: The form in which the client wants the outputs, a `headrace_serve.http.tensors.Wanted`.
        checked: Whether it was found to fit the signature of the model.
        answered: The outputs of the last answer without their elements, and the JSON that was sent before their binary
            data. None before the first answer of which all outputs were binary.
    """

    inputs: Sequence[tuple[str, str, tuple[int, ...], int]]
    outputs: list[str] | None
    parameters: Mapping[str, Any]
    wanted: Any
    checked: bool = False
    answered: tuple[Any, bytes] | None = None


class Outlines(Generic[T]):
    """Parsed requests of one model, by the bytes they were parsed from: at most 256, of up to 4096 bytes each."""

    def __init__(self) -> None:
        self._known: dict[bytes, T] = {}

    def get(self, written: bytes) -> T | None:
        """Return the request parsed from these bytes; None if it is not kept."""
        return self._known.get(written)

    def keep(self, written: bytes, outline: T) -> None:
        """Keep a parsed request, unless its bytes are too many; if it is full, all earlier entries are dropped."""
        if len(written) <= _MOST_BYTES:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[written] = outline
