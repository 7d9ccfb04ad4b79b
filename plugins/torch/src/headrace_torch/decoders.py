"""JPEG decoders: chooses an installed library, and decodes a batch with it in one call."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

import torch

from headrace.errors import InputError, MissingDependencyError, SetupError
from headrace_torch.memory import is_lost, is_out_of_memory
from headrace_torch.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Decoder", "decode_each", "make_cpu_decoder", "make_decoder", "upright"]

_INSTALL = {
    "nvimgcodec": "`pip install nvidia-nvimgcodec-cu13 nvidia-nvjpeg-cu13` (or -cu12)",
    "torchcodec": "`pip install torchcodec`",
    "torchvision": "`pip install torchvision`",
}


class Decoder(Protocol):
    """Decodes JPEG files to ``uint8 [3, H, W]``, red, green, blue: one tensor per file.

    A decoder that reports errors per file gives None for a file that it cannot decode. Others raise for the
    whole batch.
    """

    name: str

    def __call__(self, files: Sequence[memoryview]) -> list[torch.Tensor | None]:
        """Decode."""


def make_decoder(name: str, place: Place) -> Decoder:
    """Make a decoder for a device.

    Args:
        name: ``"nvimgcodec"``, ``"torchcodec"``, ``"torchvision"``. ``"auto"`` takes the first of
            these that is installed and works on the device (nvImageCodec on CUDA only).
        place: Device and stream of the instance.

    Raises:
        MissingDependencyError: The decoder is not installed. For ``"auto"``, no decoder can be used.
        SetupError: The decoder cannot decode on that device.
    """
    if name != "auto":
        try:
            return _MAKERS[name](place)
        except (ImportError, OSError, AttributeError) as error:
            raise MissingDependencyError(
                f"the decoder {name!r} cannot be used: {type(error).__name__}: {error}",
                distribution="headrace-torch",
                hint=f"Install it: {_INSTALL[name]}.",
            ) from error
    reasons = []
    for one in _MAKERS:
        try:
            return _MAKERS[one](place)
        except (ImportError, OSError, AttributeError, RuntimeError, SetupError) as error:
            reasons.append(f"{one}: {type(error).__name__}: {str(error).splitlines()[0]}")
    raise MissingDependencyError(
        f"no JPEG decoder can be used ({'; '.join(reasons)})",
        distribution="headrace-torch",
        hint=f"Install one: {_INSTALL['torchcodec']}.",
    )


def make_cpu_decoder() -> Decoder:
    """Make a decoder that decodes on the CPU, whatever the device of the instance.

    Raises:
        MissingDependencyError: No decoder can be used.
    """
    return make_decoder("auto", Place(torch.device("cpu"), None))


def decode_each(
    decode: Callable[[Sequence[memoryview]], list[torch.Tensor | None]], files: Sequence[memoryview]
) -> list[torch.Tensor | InputError]:
    """Decode files in one call. If that raises, decode them one by one, so that a broken file fails alone.

    Raises:
        RuntimeError: Memory ran out, or the device is lost.
    """
    try:
        found = decode(files)
    except RuntimeError as error:
        if is_out_of_memory(error) or is_lost(error):
            raise
        if len(files) == 1:
            return [_undecodable(str(error))]
        return [one for file in files for one in decode_each(decode, [file])]
    return [_undecodable("nothing") if image is None else image for image in found]


def _undecodable(why: str) -> InputError:
    return InputError(
        "the JPEG file is broken",
        key="data",
        expected="a file that can be decoded",
        got=f"data that the decoder refuses ({' '.join(why.split())[:200]})",
    )


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


def _tensor_of(file: memoryview) -> torch.Tensor:
    """Return a file as ``uint8 [N]`` that shares the file's memory; no decoder writes into it."""
    from headrace_torch.tensors import as_tensor

    return as_tensor(file)


class _Torchvision:
    name = "torchvision"

    def __init__(self, place: Place) -> None:
        # The operators are called directly, since the functions around them warn that they are deprecated.
        importlib.import_module("torchvision")
        self._place = place
        self._on_cpu: Any = torch.ops.image.decode_jpeg
        self._on_cuda: Any = torch.ops.image.decode_jpegs_cuda if place.stream else None

    def __call__(self, files: Sequence[memoryview]) -> list[torch.Tensor | None]:
        tensors = [_tensor_of(file) for file in files]
        if self._on_cuda is not None:
            return _taken_in(self._on_cuda(tensors, _RGB, self._place.device), self._place)
        return [self._on_cpu(tensor, _RGB, False) for tensor in tensors]


_RGB = 3
"""``ImageReadMode.RGB`` of torchvision."""


class _Torchcodec:
    name = "torchcodec"

    def __init__(self, place: Place) -> None:
        decoders: Any = importlib.import_module("torchcodec.decoders")
        self._place = place
        self._decode: Any = decoders.decode_jpeg  # from torchcodec 0.16 on
        self._device = place.device if place.stream is not None else torch.device("cpu")

    def __call__(self, files: Sequence[memoryview]) -> list[torch.Tensor | None]:
        tensors = [_tensor_of(file) for file in files]
        found = self._decode(tensors, mode="RGB", device=self._device)
        return _taken_in(found, self._place) if self._place.stream is not None else found


def _taken_in(images: list[torch.Tensor], place: Place) -> list[torch.Tensor | None]:
    """Order the instance's stream behind the decoder's own streams, which have written the images."""
    for image in images:
        place.take_in(image)
    return list(images)


class _Nvimgcodec:
    name = "nvimgcodec"

    def __init__(self, place: Place) -> None:
        if place.stream is None:
            raise SetupError(
                "the decoder 'nvimgcodec' needs a CUDA device",
                hint="decoder = 'auto' takes another one on the CPU.",
            )
        codec: Any = importlib.import_module("nvidia.nvimgcodec")
        self._codec, self._place = codec, place
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.SRGB)
        # The hardware decoder (NVJPG) is left out: whether it is used depends on the size of the batch, and it rounds
        # differently from the kernels. So the pixels of a file would depend on the other files of its batch. The CPU
        # backend is left out too: `on_unsupported` decides about it.
        kinds = codec.BackendKind.GPU_ONLY, codec.BackendKind.HYBRID_CPU_GPU
        backends = [codec.Backend(kind) for kind in kinds]
        self._decoder = codec.Decoder(device_id=place.device.index, backends=backends)
        self._stream = place.stream.cuda_stream

    def __call__(self, files: Sequence[memoryview]) -> list[torch.Tensor | None]:
        sources = [self._codec.CodeStream(bytes(file)) for file in files]
        images = self._decoder.decode(sources, params=self._params, cuda_stream=self._stream)
        return [None if image is None else self._planar(image) for image in images]

    def _planar(self, image: Any) -> torch.Tensor:
        self._place.keep(image)
        return torch.from_dlpack(image).permute(2, 0, 1).contiguous()


_MAKERS: dict[str, Callable[[Place], Decoder]] = {
    "nvimgcodec": _Nvimgcodec,
    "torchcodec": _Torchcodec,
    "torchvision": _Torchvision,
}
