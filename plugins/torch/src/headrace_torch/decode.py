"""`DecodeTensor`: from JPEG files in memory to images on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

import headrace
from headrace.errors import InputError
from headrace_torch._tensor_backend import TensorBackend, read_key

if TYPE_CHECKING:
    import torch

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_torch.jpeg import JpegHeader

__all__ = ["DecodeTensor"]


class DecodeTensor(TensorBackend):
    """Decode JPEG files to images in the order red, green, blue, a batch at a time.

    Grey files give three equal channels. Size and completeness are checked in the file's structure
    before a decoder reserves memory. On a CUDA device the GPU decodes (nvJPEG, through the
    installed library), on other devices the CPU.

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

    Source:
        nvImageCodec, TorchCodec or torchvision. The checks of the header are Headrace's own.
    """

    class Options(headrace.Options):
        """The decoder and the limits."""

        decoder: Literal["auto", "nvimgcodec", "torchcodec", "torchvision"] = Field(
            default="auto",
            description="The library that decodes; auto takes the first of these that is installed "
            "and works on the device (nvimgcodec on CUDA only).",
        )
        on_unsupported: Literal["error", "cpu"] = Field(
            default="error",
            description="A file of a kind that the decoder lacks fails, or is decoded on the CPU "
            "and copied (a name).",
        )
        max_pixels: int = Field(
            default=100_000_000,
            ge=1,
            le=1 << 30,
            description="Largest picture, in pixels (width x height); read in the header.",
        )
        exif_orientation: bool = Field(
            default=True,
            description="Turn and mirror the picture as its EXIF data ask (true or false).",
        )

        positional = ("decoder",)

    default_device = "cuda:0"
    writes = ("result", "color")

    def build(self, options: Any, context: InitContext) -> None:
        """Make the decoder."""
        from headrace_torch import decoders, jpeg

        self._options = options
        self._jpeg, self._decoders = jpeg, decoders
        self._decode: Any = decoders.make_decoder(options.decoder, self._place)
        self._on_cpu: Any = None
        if options.on_unsupported == "cpu" and self._place.device.type != "cpu":
            self._on_cpu = decoders.make_cpu_decoder()

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
        usual = {i: file for i, file in files.items() if headers[i].usual}
        found = self._decoded(self._decode, usual)
        for index in sorted(files.keys() - usual.keys()):
            found[index] = self._other(files[index])
        for index, image in found.items():
            if isinstance(image, InputError):
                outcomes[index] = image
                continue
            if self._options.exif_orientation:
                image = self._decoders.upright(image, headers[index].orientation)
            batch[index]["result"] = image
            batch[index]["color"] = "rgb"
        return outcomes if any(outcomes) else None

    def _decoded(
        self, decode: Any, files: dict[int, memoryview]
    ) -> dict[int, torch.Tensor | InputError]:
        """Decode files; with ``on_unsupported = "cpu"`` files that the decoder refuses are tried on the CPU."""
        if not files:
            return {}
        images = self._decoders.decode_each(decode, list(files.values()))
        found: dict[int, torch.Tensor | InputError] = dict(zip(files, images, strict=True))
        if self._on_cpu is None or decode is self._on_cpu:
            return self._here(found)
        for index, image in found.items():
            if isinstance(image, InputError):
                found.update(self._decoded(self._on_cpu, {index: files[index]}))
        return self._here(found)

    def _here(
        self, found: dict[int, torch.Tensor | InputError]
    ) -> dict[int, torch.Tensor | InputError]:
        from headrace_torch.transfer import moved_in

        return {
            index: image if isinstance(image, InputError) else moved_in(image, self._place)
            for index, image in found.items()
        }

    def _other(self, file: memoryview) -> torch.Tensor | InputError:
        """Decode a kind of JPEG that decoders commonly lack, if ``on_unsupported`` is ``"cpu"``; else refuse it."""
        if self._options.on_unsupported == "cpu":
            decode = self._on_cpu or self._decode
            return self._decoded(decode, {0: file})[0]
        return InputError(
            "this kind of JPEG is not supported",
            key="data",
            expected="8 bits, 1 or 3 components, Huffman-coded DCT",
            got="another kind, by its header",
            hint="on_unsupported = 'cpu' tries the decoder of the CPU.",
        )

    def describe(self) -> dict[str, Any]:
        """Return the device, and the decoder that was chosen."""
        decoder = None if self._decode is None else self._decode.name
        return {"device": str(self._place.device), "decoder": decoder}

    def close(self) -> None:
        """Drop the decoders."""
        self._decode = self._on_cpu = None
        super().close()
