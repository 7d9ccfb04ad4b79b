"""Reads the tensors of one request from host or device memory without converting arrays, and checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_tensors import (
    DeviceArray,
    Item,
    host_array,
    numpy_dtype,
    order_behind_torch,
    read_item,
    text_of,
)
from headrace_tensors.device_arrays import ArrayKind, StreamRef, read_on_device
from headrace_tensors.device_copies import is_one_allocation
from headrace_tensors.torch_views import is_plain_torch, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from headrace_tensors import Signature
    from headrace_trt.engines.signature import Port
    from headrace_trt.libraries.cuda import Cuda

    Tensor: TypeAlias = NDArray[Any] | DeviceArray
    Batch: TypeAlias = Sequence[Mapping[str, Any]]
    Alone: TypeAlias = tuple[str, tuple[int, ...], np.dtype[Any], str]

__all__ = ["Reader", "zeros"]


class Reader:
    """Reads requests for one instance.

    Args:
        signature: Inputs and outputs of the engine.
        keys: The key of the request for each input name.
        cuda: The CUDA runtime.
        stream: Gives the handle of the instance's stream, which waits for work of other streams on the arrays.
        ordinal: The number of the instance's device.
    """

    def __init__(
        self,
        signature: Signature,
        keys: Mapping[str, str],
        cuda: Cuda,
        stream: Callable[[], int],
        ordinal: int,
    ) -> None:
        self._signature = signature
        self._keys = keys
        self._cuda = cuda
        self._stream = stream
        self._ordinal = ordinal
        self._alone: Alone | None = None
        ports = signature.inputs
        if len(ports) == 1 and (shape := ports[0].exact) is not None:
            dtype = numpy_dtype(ports[0].dtype)
            name = ports[0].dtype
            self._alone = (keys[ports[0].name], shape, dtype, name)
            self._of_torch = ArrayKind(cuda, StreamRef(0), ordinal, name, shape)

    def read(self, request: Mapping[str, Any]) -> Item:
        """Read one request. See `headrace_tensors.read_item`.

        Raises:
            InputError: A value does not fit the engine under its profile.
        """
        item = read_item(
            request, self._signature, self._keys, self._tensor, from_data=True, text=_text_of
        )
        for port in self._signature.inputs:
            if port.is_shape:
                _check_values(item.tensors[port.name], port, self._keys[port.name])
        return item

    def read_samples(self, batch: Batch) -> list[Any] | None:
        """Give the arrays of a batch in which every request brings one valid sample, the most frequent case.

        The engine has one input, and all samples are numpy arrays, or all are `DeviceArray` on this device and
        stream, or all are plain tensors of torch on this device, of exactly the input's dtype and shape. None for any
        other batch. `read` then reads each request.
        """
        if self._alone is None:
            return None
        kind = type(batch[0].get(self._alone[0]))
        if kind is np.ndarray:
            return self._on_host(batch, self._alone)
        read = self._made_here if kind is DeviceArray else self._made_by_torch
        return read(batch, self._alone)

    def _on_host(self, batch: Batch, alone: Alone) -> list[Any] | None:
        values: list[Any] = []
        key, shape, dtype, _ = alone
        for request in batch:
            value = request.get(key)
            if (
                type(value) is not np.ndarray
                or value.shape != shape
                or value.dtype != dtype
                or "request_size" in request
            ):
                return None
            values.append(value)
        return values

    def _made_here(self, batch: Batch, alone: Alone) -> list[Any] | None:
        values: list[Any] = []
        key, shape, _, name = alone
        kind: ArrayKind | None = None
        ordinal, streams = self._ordinal, (0, self._stream())
        for request in batch:
            value: Any = request.get(key)
            if type(value) is not DeviceArray or "request_size" in request:
                return None
            if value._kind is not kind:
                kind = value._kind
                if kind.shape != shape or kind.dtype != name:
                    return None
                if kind.ordinal != ordinal or kind.stream.handle not in streams:
                    return None
            values.append(value)
        return values

    def _made_by_torch(self, batch: Batch, alone: Alone) -> list[Any] | None:
        key, shape, _, name = alone
        tensors: list[Any] = []
        addresses: list[int] = []
        for request in batch:
            value: Any = request.get(key)
            if (
                not is_plain_torch(value, self._ordinal)
                or value.shape != shape
                or torch_dtype(value) != name
                or "request_size" in request
            ):
                return None
            tensors.append(value)
            addresses.append(value.data_ptr())
        order_behind_torch(self._stream(), self._ordinal)
        kind = self._of_torch
        # With one owner, neighbours are found to be one array. Each is its own owner where CUDA would not copy them at once.
        total = len(tensors) * kind.nbytes
        neighbours = addresses[-1] - addresses[0] == total - kind.nbytes
        together = neighbours and is_one_allocation(addresses[0], total)
        owners = [tensors] * len(tensors) if together else tensors
        return [kind.array(at, owner) for at, owner in zip(addresses, owners, strict=True)]

    def _tensor(self, value: Any, port: Port, key: str) -> Tensor:
        if type(value) is not np.ndarray:
            array = self._on_device(value, port, key)
            if array is not None:
                return array
        return host_array(value, port, key)

    def _on_device(self, value: Any, port: Port, key: str) -> DeviceArray | None:
        try:
            array = read_on_device(value, self._cuda, self._stream(), self._ordinal)
        except InputError as error:
            error.key = key
            raise
        if array is None:
            return None
        if array.dtype != port.dtype:
            raise InputError("wrong dtype", key=key, expected=port.accepts(), got=_text_of(array))
        if port.is_shape:
            raise InputError(
                "values that decide shapes are read on the host", key=key, got=_text_of(array)
            )
        return array


def zeros(signature: Signature, which: str) -> Item:
    """Return zeros in the profile's shapes ``which`` (``"best"`` or ``"high"``), for the warm-up."""
    lengths = [getattr(port, which)[0] for port in signature.inputs if port.batched]
    rows = min([*lengths[:1], signature.high_rows or 1])
    tensors: dict[str, Tensor] = {}
    for port in signature.inputs:
        dtype = numpy_dtype(port.dtype)
        if port.is_shape:
            shape = tuple(n for n in port.shape if n is not None)
            tensors[port.name] = np.asarray(port.best, dtype).reshape(shape)
        else:
            rows_of_port = np.zeros(getattr(port, which), dtype)
            tensors[port.name] = rows_of_port[:rows] if port.batched else rows_of_port
    return Item(tensors, rows, sample=False)


def _check_values(tensor: Any, port: Port, key: str) -> None:
    """Refuse values of a shape input that are outside of the profile's range."""
    values = np.ravel(tensor).tolist()
    if any(not a <= n <= b for a, n, b in zip(port.low, values, port.high, strict=False)):
        raise InputError(
            "a value is outside of the range the engine was built for",
            key=key,
            expected=f"from {list(port.low)} to {list(port.high)}",
            got=str(values),
            hint="Build with `profiles` that take it.",
        )


def _text_of(tensor: Tensor) -> str:
    return f"{text_of(tensor)} on the device" if type(tensor) is DeviceArray else text_of(tensor)
