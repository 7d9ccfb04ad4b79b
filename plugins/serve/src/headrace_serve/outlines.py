"""What a request says apart from its bytes: clients say the same again and again, so it is read once."""

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
    """A request of which the bytes of the tensors are missing; it was read for one model.

    Attributes:
        inputs: Name, datatype, shape and number of bytes of each tensor.
        outputs, parameters: As `headrace_serve.messages.Asked` has them.
        wanted: In which form the outputs are wanted, as `headrace_serve.rest_tensors` tells it.
        checked: Whether it fits the signature of its model.
    """

    inputs: Sequence[tuple[str, str, tuple[int, ...], int]]
    outputs: list[str] | None
    parameters: Mapping[str, Any]
    wanted: Any
    checked: bool = False


class Outlines(Generic[T]):
    """What was read for one model, by the bytes that it was read from; at most so many, of so many bytes each."""

    def __init__(self) -> None:
        self._known: dict[bytes, T] = {}

    def get(self, written: bytes) -> T | None:
        """Give what was read from these bytes, if it is kept."""
        return self._known.get(written)

    def keep(self, written: bytes, outline: T) -> None:
        """Keep what was read, unless the bytes are many; when there are too many, those before are forgotten."""
        if len(written) <= _MOST_BYTES:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[written] = outline
