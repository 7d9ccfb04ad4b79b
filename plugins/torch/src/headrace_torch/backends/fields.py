"""Types of options that several backends of this plugin share."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat

__all__ = ["ColorName", "Dim", "DtypeName", "Interpolation", "PerChannel", "Shapes", "Side"]


def _channels(values: tuple[float, ...]) -> tuple[float, ...]:
    if len(values) == 2:
        raise ValueError("an image has 1, 3 or 4 channels")
    return values


PerChannel = Annotated[
    tuple[FiniteFloat, ...], Field(min_length=1, max_length=4), AfterValidator(_channels)
]
"""One number per channel."""

Side = Annotated[int, Field(ge=1, le=32_767)]
"""Height or width of a resulting image, in pixels."""

Interpolation = Literal["nearest", "linear", "cubic"]
"""How values between pixels are computed."""

ColorName = Literal["rgb", "bgr", "gray"]
"""The order of the channels of an image."""

DtypeName = Literal[
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
"""A dtype of tensors."""

_AXES = r"(-1|[1-9]\d{0,8})(x(-1|[1-9]\d{0,8}))*"
_SHAPE = re.compile(rf"(({'|'.join(get_args(DtypeName))}):)?{_AXES}")

Dim = Annotated[int, Field(ge=-16, le=15)]
"""An axis of one sample."""


def _shapes(value: Any) -> Any:
    """Check a shape, or a table of shapes; a shape of one axis may be written as a number."""
    if isinstance(value, dict):
        return {name: _shapes(shape) for name, shape in value.items()}
    text = str(value) if type(value) is int else value
    if text is not None and not (isinstance(text, str) and _SHAPE.fullmatch(text)):
        raise ValueError("a shape is written '3x224x224' or 'uint8:3x224x224', -1 for any length")
    return text


Shapes = Annotated[str | dict[str, str] | None, BeforeValidator(_shapes)]
"""The shape of one sample: '3x224x224' or 'uint8:3x224x224', or a table by the name of the input."""
