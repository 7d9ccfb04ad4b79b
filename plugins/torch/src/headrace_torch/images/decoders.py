"""Decodes JPEG files with torchvision, a batch in one call, and turns images upright."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import InputError, MissingDependencyError, is_out_of_memory
from headrace.plugins import library
from headrace_torch.devices.memory import is_lost
from headrace_torch.requests.tensors import as_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_torch.devices.place import Place

__all__ = ["Decoder", "upright"]

_RGB = 3
"""``ImageReadMode.RGB`` of torchvision."""


class Decoder:
    """Decodes JPEG files to ``uint8 [3, H, W]``, red, green, blue: on a CUDA device with nvJPEG, else on the CPU.

    Args:
        place: Device and stream of the instance. None: the CPU.

    Raises:
        MissingDependencyError: torchvision is not installed, or has no decoder.
    """

    def __init__(self, place: Place | None) -> None:
        library("torchvision", "headrace-torch[decode]", "decoding")
        self._place = place if place is not None and place.stream is not None else None
        try:
            # The operators are called directly, since the functions around them warn that they are deprecated.
            self._on_cpu: Any = torch.ops.image.decode_jpeg
            self._on_cuda: Any = self._place and torch.ops.image.decode_jpegs_cuda
        except AttributeError as error:
            raise MissingDependencyError(
                f"the installed torchvision decodes no JPEG files: {error}",
                distribution="headrace-torch",
                hint="Install the build of torchvision that belongs to your build of torch.",
            ) from error

    def __call__(self, files: Sequence[memoryview]) -> list[torch.Tensor | InputError]:
        """Decode files in one call. If that fails, decode them one by one, so that a broken file fails alone.

        Raises:
            RuntimeError: Memory ran out, or the device is lost.
        """
        try:
            return list(self._decoded(files))
        except RuntimeError as error:
            if is_out_of_memory(error) or is_lost(error):
                raise
            if len(files) > 1:
                return [image for file in files for image in self([file])]
            why = " ".join(str(error).split())[:200]
            return [
                InputError(
                    "the JPEG file is broken",
                    key="data",
                    expected="a file that can be decoded",
                    got=f"data that the decoder refuses ({why})",
                )
            ]

    def _decoded(self, files: Sequence[memoryview]) -> list[torch.Tensor]:
        tensors = [as_tensor(file) for file in files]  # no decoder writes into them
        if self._place is None:
            return [self._on_cpu(tensor, _RGB, False) for tensor in tensors]
        images: list[torch.Tensor] = self._on_cuda(tensors, _RGB, self._place.device)
        for image in images:  # the decoder wrote them on streams of its own
            self._place.take_in(image)
        return images


def upright(image: torch.Tensor, orientation: int) -> torch.Tensor:
    """Turn and mirror ``[C, H, W]`` as its EXIF orientation asks. A new tensor unless the orientation is 1.

    Source:
        CIPA DC-008 (EXIF), orientation 1 to 8.
    """
    if orientation == 1:
        return image
    if orientation in (5, 6, 7, 8):
        image = image.transpose(1, 2)
    axes = {2: (2,), 3: (1, 2), 4: (1,), 5: (), 6: (2,), 7: (1, 2), 8: (1,)}[orientation]
    return image.flip(axes) if axes else image.contiguous()
