"""For ``headrace conformance headrace-torch``: an expression and requests for each backend.

The backends are judged on the CPU. ``HEADRACE_TORCH_DEVICE=cuda:0`` judges them on another device.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from headrace.keys import Request

__all__ = [
    "ArgMaxTensorConformance",
    "CatTensorConformance",
    "ContiguousTensorConformance",
    "CpuTensorConformance",
    "CropTensorConformance",
    "CvtColorTensorConformance",
    "DecodeTensorConformance",
    "FixTensorConformance",
    "GpuTensorConformance",
    "IndexSelectTensorConformance",
    "NormalizeTensorConformance",
    "PadTensorConformance",
    "ResizeTensorConformance",
    "SoftmaxTensorConformance",
    "SplitTensorConformance",
    "StreamPoolConformance",
    "SyncTensorConformance",
    "TopKTensorConformance",
    "TorchModuleConformance",
]

DEVICE = os.environ.get("HEADRACE_TORCH_DEVICE", "cpu")
"""The device on which the backends are judged."""


def numbers(k: int, *shape: int) -> torch.Tensor:
    """Return tensor number ``k``: ``float32``, standard normal, on the device."""
    values = np.random.default_rng(k).standard_normal(shape).astype(np.float32)
    return torch.from_numpy(values).to(DEVICE)


def picture(k: int) -> torch.Tensor:
    """Return picture number ``k``: ``uint8 [3, H, W]``, noise, of two sizes in turn."""
    shape = (3, 20 + k % 2, 30)
    pixels = np.random.default_rng(k).integers(0, 256, shape, np.uint8)
    return torch.from_numpy(pixels).to(DEVICE)


class _OnDevice(BackendConformance):
    """A backend on one device."""

    options: Mapping[str, Any] = {"device": DEVICE}
    # Libraries choose other kernels for other batch sizes, whose results differ in the last digits.
    rtol = 1e-4
    atol = 1e-5

    def unavailable(self) -> str | None:
        """Return why the backends cannot be judged here; None if they can."""
        if DEVICE.startswith("cuda") and not torch.cuda.is_available():
            return "no CUDA device"
        return None


def tensor(values: Any) -> torch.Tensor:
    """Return numbers as ``float32`` on the device."""
    return torch.from_numpy(np.asarray(values, np.float32)).to(DEVICE)


class _OnPictures(_OnDevice):
    """Requests with a picture."""

    def make_item(self, k: int) -> Request:
        """Return a picture."""
        return {"data": picture(k)}


class _OnScores(_OnDevice):
    """Requests with a row of numbers."""

    def make_item(self, k: int) -> Request:
        """Return a sample, or two rows of them."""
        if k % 3 == 2:
            return {"data": numbers(k, 2, 5), "request_size": 2}
        return {"data": numbers(k, 5)}

    def scores(self, k: int) -> NDArray[np.float64]:
        """Return the numbers of request ``k``, in double precision."""
        scores: NDArray[np.float64] = self.make_item(k)["data"].cpu().double().numpy()
        return scores


class TorchModuleConformance(_OnScores):
    """Samples and rows for a module with one input."""

    expression = "TorchModule"
    options: Mapping[str, Any] = {
        "device": DEVICE,
        "module": "headrace_torch.conformance:small_model",
        "shape": "5",
    }

    def expected(self, k: int) -> Any:
        """Return the products by numpy."""
        weight = np.linspace(-1, 1, 15).reshape(3, 5)
        return tensor(np.maximum(self.scores(k) @ weight.T + [0.5, 0.0, -0.5], 0))


def small_model() -> torch.nn.Module:
    """Make ``y = relu(x W + b)``: ``x`` is ``float32 [N, 5]``, ``y`` is ``float32 [N, 3]``."""
    linear = torch.nn.Linear(5, 3)
    with torch.no_grad():
        linear.weight.copy_(torch.linspace(-1, 1, 15).reshape(3, 5))
        linear.bias.copy_(torch.tensor([0.5, 0.0, -0.5]))
    return torch.nn.Sequential(linear, torch.nn.ReLU())


class DecodeTensorConformance(_OnDevice):
    """JPEG files."""

    expression = "DecodeTensor"

    def make_item(self, k: int) -> Request:
        """Return a file in memory."""
        return {"data": jpeg_file(k)}


def jpeg_file(k: int) -> bytes:
    """Return JPEG file number ``k``: a gradient, each of another size."""
    from PIL import Image

    height, width = 16 + 8 * (k % 3), 24
    y, x = np.mgrid[0:height, 0:width]
    planes = [x * 255 // width, y * 255 // height, (x + y + k) % 256]
    file = io.BytesIO()
    Image.fromarray(np.stack(planes, -1).astype(np.uint8)).save(file, "jpeg", quality=90)
    return file.getvalue()


class GpuTensorConformance(_OnDevice):
    """Arrays on the CPU."""

    expression = "GpuTensor"

    def make_item(self, k: int) -> Request:
        """Return an image as headrace-cv does."""
        return {"data": picture(k).cpu().permute(1, 2, 0).contiguous().numpy()}


class CpuTensorConformance(_OnPictures):
    """Tensors on the device."""

    expression = "CpuTensor"


class FixTensorConformance(_OnDevice):
    """Images with the channels last."""

    expression = "FixTensor(uint8,3x-1x-1)"

    def make_item(self, k: int) -> Request:
        """Return an image as headrace-cv does."""
        return {"data": picture(k).cpu().permute(1, 2, 0).contiguous().numpy()}


class CatTensorConformance(_OnScores):
    """One request at a time: in a larger batch each result is the whole, which differs from the result alone."""

    expression = "CatTensor"
    options: Mapping[str, Any] = {"device": DEVICE, "max": 1}


class ContiguousTensorConformance(_OnDevice):
    """Tensors whose axes are exchanged."""

    expression = "ContiguousTensor"

    def make_item(self, k: int) -> Request:
        """Give a tensor with its memory in another order."""
        return {"data": numbers(k, 4, 3).t()}

    def expected(self, k: int) -> Any:
        """Return a copy in order."""
        return tensor(numbers(k, 4, 3).cpu().numpy().T.copy())


class SplitTensorConformance(_OnDevice):
    """Parts of a whole."""

    expression = "SplitTensor"

    def make_item(self, k: int) -> Request:
        """Return a whole tensor, and the place of the request's rows in it."""
        return {"data": numbers(k, 6, 3), "cat_rows": (k % 4, k % 4 + 1 + k % 2, k % 2 == 0)}

    def expected(self, k: int) -> Any:
        """Return a row of each second whole, and two rows of the others."""
        rows = numbers(k, 6, 3)
        return rows[k % 4 : k % 4 + 2] if k % 2 else rows[k % 4]


class ResizeTensorConformance(_OnPictures):
    """Pictures of two sizes."""

    expression = "ResizeTensor(16,24)"


class CropTensorConformance(_OnPictures):
    """Pictures, with a box in each."""

    expression = "CropTensor"

    def make_item(self, k: int) -> Request:
        """Return a picture and a box."""
        return {"data": picture(k), "box": [1 + k % 7, 2, 20, 12 + k % 5]}

    def expected(self, k: int) -> Any:
        """Return rows and columns by their numbers."""
        return picture(k)[:, 2 : 12 + k % 5, 1 + k % 7 : 20]


class PadTensorConformance(_OnPictures):
    """Pictures of two sizes."""

    expression = "PadTensor(32,32)"

    def expected(self, k: int) -> Any:
        """Return the picture in the corner of a black one."""
        canvas = torch.zeros((3, 32, 32), dtype=torch.uint8, device=DEVICE)
        canvas[:, : 20 + k % 2, :30] = picture(k)
        return canvas


class CvtColorTensorConformance(_OnPictures):
    """Pictures in both orders of the channels."""

    expression = "CvtColorTensor(gray)"

    def make_item(self, k: int) -> Request:
        """Give a picture and its colour."""
        return {"data": picture(k), "color": ("bgr", "rgb")[k % 2]}


class NormalizeTensorConformance(_OnPictures):
    """Pictures, normalised per channel."""

    expression = "NormalizeTensor(scale=0.00392, mean=[0.5,0.4,0.3], std=[0.2,0.2,0.3])"

    def expected(self, k: int) -> Any:
        """Return the formula, by numpy."""
        values = picture(k).cpu().numpy().transpose(1, 2, 0) * 0.00392
        return tensor(((values - [0.5, 0.4, 0.3]) / [0.2, 0.2, 0.3]).transpose(2, 0, 1))


class SoftmaxTensorConformance(_OnScores):
    """Scores."""

    expression = "SoftmaxTensor"

    def expected(self, k: int) -> Any:
        """Return the formula, by numpy."""
        powers = np.exp(self.scores(k))
        return tensor(powers / powers.sum(-1, keepdims=True))


class ArgMaxTensorConformance(_OnScores):
    """Scores."""

    expression = "ArgMaxTensor"

    def expected(self, k: int) -> Any:
        """Return the place of the largest, by numpy."""
        return torch.as_tensor(self.scores(k).argmax(-1), device=DEVICE)


class TopKTensorConformance(_OnScores):
    """Scores."""

    expression = "TopKTensor(2)"

    def expected(self, k: int) -> Any:
        """Return the two largest, by numpy."""
        places = np.argsort(-self.scores(k))[..., :2]
        values = tensor(np.take_along_axis(self.scores(k), places, -1))
        return {"values": values, "indices": torch.from_numpy(places).to(DEVICE)}


class IndexSelectTensorConformance(_OnScores):
    """Scores."""

    expression = "IndexSelectTensor([0,-1,2])"

    def expected(self, k: int) -> Any:
        """Return these columns, by numpy."""
        return tensor(self.scores(k)[..., [0, -1, 2]])


class SyncTensorConformance(_OnScores):
    """Scores, which are passed on."""

    expression = "SyncTensor"


class StreamPoolConformance(SoftmaxTensorConformance):
    """Something inside that computes."""

    expression = "StreamPool(2)[SoftmaxTensor]"
