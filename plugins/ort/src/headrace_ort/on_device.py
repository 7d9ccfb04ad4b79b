"""The place of a session on a CUDA device: its device, the instance's stream, and the providers' options."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import onnxruntime as ort

from headrace.errors import InputError
from headrace_ort import cuda
from headrace_ort.device_runner import DeviceRunner
from headrace_ort.options import ON_CUDA
from headrace_ort.values import check_on_device, read_on_cpu
from headrace_tensors.device_arrays import read_on_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace import InitContext
    from headrace_tensors import DeviceStream, Port, Signature

__all__ = ["Place", "place_of", "sizes_to_capture", "stream_options"]


_CONVOLUTIONS: Final = "HEURISTIC"
"""The default for how cuDNN chooses the algorithm of a convolution.

The provider chooses again whenever the shape differs from that of the previous run, and batches differ in size.
With its own default, EXHAUSTIVE, cuDNN then builds every candidate, which takes seconds for a deep network.
"""

_preloading = threading.Lock()


@functools.cache
def _preload() -> None:
    """Load CUDA and cuDNN from installed packages, unless torch is loaded, which has loaded its own."""
    load = getattr(ort, "preload_dlls", None)
    if load is None or "torch" in sys.modules:
        return
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):  # it prints the libraries that it does not find
        load()
    if printed.getvalue():
        logging.getLogger("headrace.ort").debug("%s", printed.getvalue().strip())


@dataclass(frozen=True)
class Place:
    """A device and a stream.

    Attributes:
        ordinal: The number of the CUDA device.
        stream: The instance's stream, a ``cudaStream_t`` as an int.
        providers: The providers, with the options that let the session compute on that device and stream.
        shared: Whether several instances use the session, which then has a stream of its own.
        behind: What the stream is ordered behind in this batch, see `read_on_device`.
    """

    ordinal: int
    stream: int
    providers: list[tuple[str, dict[str, str]]]
    shared: bool
    behind: set[str] = field(default_factory=set)

    def runner(self, session: Any, signature: Signature, **how: Any) -> DeviceRunner:
        """Make the runner of a session at this place; the further arguments are those of `DeviceRunner`."""
        return DeviceRunner(
            session, signature, self.ordinal, self.stream, shared=self.shared, **how
        )

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make the device current in this thread for a block, and then the previous device again."""
        return cuda.Current(self.ordinal)

    def read(self, value: Any, port: Port, key: str) -> Any:
        """Return an array on the device as a `DeviceArray`, and any other value as a numpy array.

        Raises:
            InputError: The session does not take the value.
        """
        try:
            array = read_on_device(value, cuda, self.stream, self.ordinal, self.behind)
        except InputError as error:
            error.key = key
            raise
        if array is None:
            return read_on_cpu(value, port, key)
        check_on_device(array, port, key)
        return array


def place_of(
    context: InitContext,
    providers: Sequence[tuple[str, dict[str, str]]],
    *,
    shared: bool,
    cuda_graph: bool,
) -> Place | None:
    """Return the place of a session on these providers. None if the first is none of `ON_CUDA`.

    Raises:
        MissingDependencyError: cuda-bindings is not installed.
        SetupError: This machine does not have the device.
    """
    first, options = providers[0]
    if first not in ON_CUDA:
        return None
    ordinal = int(options.get("device_id", "0"))
    cuda.check_ordinal(ordinal)
    with _preloading:
        _preload()
    owner: DeviceStream = context.store.instance.get_or_create(
        ("cuda.stream", ordinal), lambda: cuda.CudaStream(ordinal)
    )
    chosen = []
    for name, values in providers:
        more: dict[str, str] = {}
        if name in ON_CUDA and not shared:
            more = stream_options(name, owner.handle)
        if name == "CUDAExecutionProvider":
            more["cudnn_conv_algo_search"] = _CONVOLUTIONS
            if cuda_graph:
                more["enable_cuda_graph"] = "1"
        chosen.append((name, {**more, **values}))
    return Place(ordinal, owner.handle, chosen, shared)


def stream_options(provider: str, handle: int) -> dict[str, str]:
    """Return the options with which a CUDA or TensorRT provider computes on the stream ``handle``."""
    options = {"user_compute_stream": str(handle)}
    if provider == "TensorrtExecutionProvider":
        options["has_user_compute_stream"] = "1"
    return options


def sizes_to_capture(batch_sizes: Sequence[int] | None, most: int | None) -> list[int]:
    """Return the batch sizes to capture: the node's ``batch_sizes``, else 1, 2, 4, ... and ``most``."""
    if batch_sizes:
        return sorted(set(batch_sizes))
    sizes, size = {most or 1}, 1
    while size < (most or 1):
        sizes.add(size)
        size *= 2
    return sorted(sizes)
