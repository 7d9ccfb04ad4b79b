"""`DecodeTensor`: from JPEG files in memory to images on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

import headrace
from headrace.errors import InputError
from headrace_torch.backends.base import TensorBackend, read_key

if TYPE_CHECKING:
    import torch

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_formats.jpeg import JpegHeader

__all__ = ["DecodeTensor"]


class DecodeTensor(TensorBackend):
    """Decode JPEG files to images in the order red, green, blue, a batch at a time.

    Grey files give three equal channels. Size and completeness are checked in the file's structure
    before a decoder reserves memory. On a CUDA device the GPU decodes (nvJPEG), on other devices the CPU.

    Reads:
        data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array: one JPEG file.

    Writes:
        result: ``uint8 [3, H, W]`` on the instance's device, new memory.
        color: ``"rgb"``.

    Batch:
        1 or more. Decoded in one call, a broken file fails alone.

    Raises:
        InputError: ``data`` is missing or of another type or format, has more than ``max_pixels``, is
            truncated or broken, or is a kind of JPEG unknown to the decoder while ``on_unsupported`` is
            ``error``.
        MissingDependencyError: torchvision is not installed, or has no decoder.

    Source:
        torchvision. The checks of the header are Headrace's own.
    """

    class Options(headrace.Options):
        """The limits, and what becomes of rare kinds of JPEG.

        Attributes:
            on_unsupported: A file of a kind that the decoder lacks fails, or is decoded on the CPU and copied (a name).
            max_pixels: Largest picture, in pixels (width x height); read in the header.
            exif_orientation: Turn and mirror the picture as its EXIF data ask (true or false).
        """

        on_unsupported: Literal["error", "cpu"] = "error"
        max_pixels: int = Field(default=100_000_000, ge=1, le=1 << 30)
        exif_orientation: bool = True

    default_device = "cuda:0"
    takes_from = None
    writes = ("result", "color")

    def build(self, options: Any, context: InitContext) -> None:
        """Make the decoder."""
        from headrace_torch.devices.transfer import moved_in
        from headrace_torch.images import decoders, jpeg

        self._options = options
        self._jpeg, self._upright, self._moved_in = jpeg, decoders.upright, moved_in
        self._decode: Any = decoders.Decoder(self._place)
        self._on_cpu: Any = decoders.Decoder(None) if options.on_unsupported == "cpu" else None

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Check the headers, decode the files that pass, and turn the images upright."""
        outcomes: list[Exception | None] = [None] * len(batch)
        files: dict[int, memoryview] = {}
        headers: dict[int, JpegHeader] = {}
        for index, request in enumerate(batch):
            try:
                view = self._jpeg.view_of_bytes(read_key(request, "data", self._jpeg.EXPECTED))
                headers[index] = self._jpeg.check_jpeg(view, max_pixels=self._options.max_pixels)
                files[index] = self._jpeg.without_exif(view, headers[index])
            except InputError as error:
                outcomes[index] = error
        for index, image in self._decoded(files, headers).items():
            if isinstance(image, InputError):
                outcomes[index] = image
                continue
            moved = self._moved_in(image, self._place)
            if self._options.exif_orientation:
                moved = self._upright(moved, headers[index].orientation)
            batch[index]["result"] = moved
            batch[index]["color"] = "rgb"
        return outcomes if any(outcomes) else None

    def _decoded(
        self, files: dict[int, memoryview], headers: dict[int, JpegHeader]
    ) -> dict[int, torch.Tensor | InputError]:
        """Decode files. With ``on_unsupported = "cpu"`` those that the decoder lacks or refuses are tried on the CPU."""
        usual = [index for index in files if headers[index].is_usual]
        images = self._decode([files[index] for index in usual]) if usual else []
        decoded: dict[int, torch.Tensor | InputError] = dict(zip(usual, images, strict=True))
        for index, file in files.items():
            if index in decoded and not isinstance(decoded[index], InputError):
                continue
            if self._on_cpu is not None:
                (decoded[index],) = self._on_cpu([file])
            elif index not in decoded:
                decoded[index] = InputError(
                    "this kind of JPEG is not supported",
                    key="data",
                    expected="8 bits, 1 or 3 components, Huffman-coded DCT",
                    got="another kind, by its header",
                    hint="on_unsupported = 'cpu' tries the decoder of the CPU.",
                )
        return decoded

    def close(self) -> None:
        """Drop the decoders."""
        self._decode = self._on_cpu = None
        super().close()
