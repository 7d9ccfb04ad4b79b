"""`Decode2Tensor`: from a file in memory to a network's input tensor, in two calls of OpenCV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import FiniteFloat, field_validator, model_validator

from headrace_cv._fields import PerChannel, Side, check_made
from headrace_cv._per_image import of_data
from headrace_cv.decode import DecodeMat
from headrace_cv.tensor import check_factors, lint_normalization, note_normalization, refuse_zero

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from headrace import InitContext
    from headrace.errors import Problem
    from headrace.keys import Request

__all__ = ["Decode2Tensor"]


class Decode2Tensor(DecodeMat):
    """Decode a JPEG, PNG or WebP file, resize the picture and make a planar float tensor of it.

    The result is, bit for bit, that of ``S[DecodeMat,ResizeMat,CvtColorMat,Mat2Tensor]`` with the same options. Those four
    let the interpreter lock go several times for a picture, and with many threads getting it back is a wait. Here OpenCV
    decodes in one call and does everything else in another, both without the lock.

    Reads:
        data: A file, as `DecodeMat` reads it.

    Writes:
        result: ``float32 [3, resize_h, resize_w]``, ``(pixels * scale - mean) / std``, contiguous, a new array.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: As in `DecodeMat`.

    Source:
        Own. OpenCV's ``imdecode`` and ``dnn.blobFromImageWithParams``.
    """

    class Options(DecodeMat.Options):
        """The limits of `DecodeMat`, the size, and the numbers of `Mat2Tensor`.

        Attributes:
            resize_h: Height of the result, in pixels.
            resize_w: Width of the result, in pixels.
            color: Order of the channels of the result: rgb or bgr.
            scale: Factor, multiplied first (no unit), not 0.
            mean: Subtracted after scaling, in scaled values: one number or three, as `color` orders them.
            std: Divided by last, in scaled values, not 0: one number or three.
        """

        resize_h: Side
        resize_w: Side
        color: Literal["rgb", "bgr"] = "rgb"
        scale: FiniteFloat = 1.0
        mean: FiniteFloat | PerChannel | None = None
        std: FiniteFloat | PerChannel | None = None

        positional = ("resize_h", "resize_w")
        _divides = field_validator("scale", "std")(refuse_zero)

        @model_validator(mode="after")
        def _fit_together(self) -> Self:
            check_made(self.resize_h, self.resize_w, self.max_pixels)
            for name in ("mean", "std"):
                value = getattr(self, name)
                if isinstance(value, tuple) and len(value) != 3:
                    raise ValueError(f"{name} has one number or three, one per channel")
            check_factors(self)
            return self

    writes = ("result",)

    @classmethod
    def lint(cls, options: Any, largest_batch: int) -> Iterator[Problem]:
        """Tell of a normalisation that contradicts the range of the values."""
        return lint_normalization(options)

    def init(self, options: Any, context: InitContext) -> None:
        """Build the function; record for later nodes of the instance which mean and std it applies."""
        super().init(options, context)
        note_normalization(options, context)

    def build(self, options: Any) -> Callable[[Request], None]:
        """Decode one file, and make a tensor of its picture."""
        import cv2

        from headrace_cv.functions.tensors import Normalization, blob_params

        decode = self.decoder(options)
        about = blob_params(Normalization(options.scale, options.mean, options.std), 3)
        about.size, about.swapRB = (options.resize_w, options.resize_h), options.color == "rgb"
        blob: Any = cv2.dnn.blobFromImageWithParams

        return of_data(lambda data: blob(decode(data), about)[0], self.expected)
