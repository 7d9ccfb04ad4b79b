"""Types of options that several backends of this plugin share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

__all__ = ["ColorName", "Dim", "DtypeName", "Interpolation", "PerChannel", "Side"]

PerChannel = Annotated[tuple[FiniteFloat, ...], Field(min_length=1, max_length=4)]
"""One number per channel."""

Side = Annotated[int, Field(ge=1, le=32_767)]
"""Height or width of an image that is made, in pixels."""

Interpolation = Literal["nearest", "linear", "cubic"]
"""How values between pixels are computed."""

ColorName = Literal["rgb", "bgr", "gray"]
"""The order of the channels of an image."""

DtypeName = Literal[
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
]
"""A dtype of tensors."""

Dim = Annotated[int, Field(ge=-16, le=15)]
"""An axis of one sample."""
