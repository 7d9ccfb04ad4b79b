"""Reads the tensors of one request from host or device memory without converting arrays, and checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from headrace.errors import InputError
from headrace_trt.arrays import DeviceArray, Foreign, numpy_dtype, read_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from headrace_trt.arrays import ArrayKind
    from headrace_trt.cuda import Cuda
    from headrace_trt.signature import Port, Signature

    Tensor: TypeAlias = NDArray[Any] | Foreign

__all__ = ["Item", "Reader", "host_array", "read_item", "zeros"]

_WIDENS: Final = {"b": "b", "i": "iuf", "u": "iuf", "f": "f"}
"""For each kind of numpy dtype of Python numbers, the kinds to which they may be converted."""


class Item(NamedTuple):
    """The inputs of one request for a run.

    Attributes:
        tensors: A tensor for each input, in host or device memory; those of batched inputs have a batch axis.
        rows: The length of the batch axis.
        sample: Whether the request brought one sample, without batch axis.
    """

    tensors: Mapping[str, Tensor]
    rows: int
    sample: bool


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
        self._alone: tuple[str, tuple[int, ...], np.dtype[Any], str] | None = None
        ports = signature.inputs
        if len(ports) == 1 and ports[0].batched and None not in ports[0].shape[1:]:
            shape = tuple(n for n in ports[0].shape[1:] if n is not None)
            dtype = numpy_dtype(ports[0].dtype)
            self._alone = (keys[ports[0].name], shape, dtype, ports[0].dtype)

    def read(self, request: Mapping[str, Any]) -> Item:
        """Read one request; see `read_item`."""
        return read_item(request, self._signature, self._keys, self._tensor)

    def read_samples(self, batch: Sequence[Mapping[str, Any]]) -> list[Any] | None:
        """Give the arrays of a batch in which every request brings one valid sample, the most frequent case.

        The engine has one input, and all samples are numpy arrays, or all are `DeviceArray` on this device and
        stream, of exactly the input's dtype and shape. None for any other batch; `read` then reads each request.
        """
        if self._alone is None:
            return None
        key, shape, dtype, name = self._alone
        values: list[Any] = []
        if type(batch[0].get(key)) is DeviceArray:
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

    def _tensor(self, value: Any, port: Port, key: str) -> Tensor:
        if type(value) is not np.ndarray:
            found = self._foreign(value, port, key)
            if found is not None:
                return found
        return host_array(value, port, key)

    def _foreign(self, value: Any, port: Port, key: str) -> Foreign | None:
        try:
            found = read_foreign(value, self._cuda, self._stream(), self._ordinal)
        except InputError as error:
            error.key = key
            raise
        except Exception as error:  # a foreign array may raise anything
            raise InputError(
                f"this array cannot be read ({type(error).__name__}: {error})",
                key=key,
                expected=_accepts(port),
                got=type(value).__name__,
            ) from error
        if found is None:
            return None
        if found.dtype != port.dtype:
            raise InputError("wrong dtype", key=key, expected=_accepts(port), got=_text_of(found))
        if port.is_shape:
            raise InputError(
                "values that decide shapes are read on the host", key=key, got=_text_of(found)
            )
        if not found.contiguous:
            raise InputError(
                "the array on the device is not in C order",
                key=key,
                expected=_accepts(port),
                got=_text_of(found),
                hint="Make it contiguous before (ContiguousTensor does).",
            )
        return found


def read_item(
    request: Mapping[str, Any],
    signature: Signature,
    keys: Mapping[str, str],
    read: Callable[[Any, Port, str], Tensor],
) -> Item:
    """Read the inputs of an engine from a request.

    ``data`` may also be a dict of tensors by input name, as gathering several inputs produces it.

    Args:
        request: A request; ``request_size`` (default 1) is the number of rows it must have.
        signature: What the engine takes.
        keys: The key of the request for each input name.
        read: Makes a tensor of a value.

    Raises:
        InputError: A key is missing, or its value has another dtype or shape than the engine
            takes under its profile.
    """
    size = request.get("request_size", 1)
    tensors: dict[str, Tensor] = {}
    sample: bool | None = None
    for port in signature.inputs:
        key = keys[port.name]
        value = _value(request, port, key)
        tensor = read(value, port, key)
        _check_axes(tensor, port, key)
        if port.is_shape:
            _check_values(tensor, port, key)
        if port.batched:
            alone = len(tensor.shape) == len(port.shape) - 1
            if sample is not None and alone is not sample:
                raise InputError(
                    "some inputs of this request have a batch axis, others have none",
                    key=key,
                    expected=port.text(sample=sample),
                    got=_text_of(tensor),
                )
            sample = alone
            tensor = _with_rows(tensor, port, key, size, signature)
        tensors[port.name] = tensor
    return Item(tensors, size, bool(sample))


def zeros(signature: Signature, which: str) -> Item:
    """Give zeros in the profile's shapes ``which`` (``"best"`` or ``"high"``), for the warm-up."""
    rows = next(getattr(port, which)[0] for port in signature.inputs if port.batched)
    rows = min(rows, signature.high_rows)
    tensors: dict[str, Tensor] = {}
    for port in signature.inputs:
        dtype = numpy_dtype(port.dtype)
        if port.is_shape:
            shape = tuple(n for n in port.shape if n is not None)
            tensors[port.name] = np.asarray(port.best, dtype).reshape(shape)
        else:
            found = np.zeros(getattr(port, which), dtype)
            tensors[port.name] = found[:rows] if port.batched else found
    return Item(tensors, rows, sample=False)


def _value(request: Mapping[str, Any], port: Port, key: str) -> Any:
    data = request.get("data")
    if isinstance(data, dict) and port.name in data:
        return data[port.name]
    if key not in request:
        raise InputError("the request lacks a key", key=key, expected=_accepts(port))
    return request[key]


def host_array(value: Any, port: Port, key: str = "data") -> NDArray[Any]:
    """Read ``value`` as an array of the port's dtype; the dtype of an array is never converted.

    Python numbers and lists of them carry no dtype: they get the port's, unless a value would
    not fit. An array that numpy or DLPack can read must have the port's dtype.

    Raises:
        InputError: ``value`` is no array, has another dtype, or its numbers do not fit the port's dtype.
    """
    wanted = numpy_dtype(port.dtype)
    if type(value) is np.ndarray and value.dtype == wanted:
        return value
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            array = np.from_dlpack(value)
        else:
            array = np.asarray(value)
    except Exception as error:  # a foreign array may raise anything
        raise InputError(
            f"this is nothing numpy can read ({error})",
            key=key,
            expected=_accepts(port),
            got=type(value).__name__,
        ) from error
    if array.dtype != wanted and _is_plain(value):
        converted = _widened(array, wanted)
        if converted is not None:
            return converted
    if array.dtype != wanted:
        raise InputError("wrong dtype", key=key, expected=_accepts(port), got=_text_of(array))
    return array


def _is_plain(value: Any) -> bool:
    """Return whether ``value`` is a Python number, or a list of them, without a dtype."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (bool, int, float, list, tuple)) and not hasattr(value, "dtype")


def _widened(array: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any] | None:
    # numpy does not know bfloat16 and fp8 as floats
    kind = "f" if wanted.kind == "V" else wanted.kind
    try:
        if array.dtype.kind == "O" and all(type(one) in (int, float) for one in array.flat):
            array = array.astype(np.float64)  # there is an integer of more than 64 bits
    except OverflowError:
        return None
    if array.size and kind not in _WIDENS.get(array.dtype.kind, ""):
        return None
    if array.size and kind in "iu":
        bounds = np.iinfo(wanted)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            return None
    with np.errstate(over="ignore", invalid="ignore"):
        made: NDArray[Any] = array.astype(wanted)
    tests = (np.isfinite, np.isnan) if kind == "f" else ()
    return made if all(np.array_equal(test(made), test(array)) for test in tests) else None


def _with_rows(tensor: Tensor, port: Port, key: str, size: int, signature: Signature) -> Tensor:
    """Give the tensor with its batch axis, which must be ``size`` long."""
    least, most = signature.least_rows, signature.high_rows
    alone = len(tensor.shape) < len(port.shape)
    rows = 1 if alone else tensor.shape[0]
    if rows != size:
        raise InputError(
            "the number of rows is not `request_size`",
            key=key,
            expected=f"{size} {'row' if size == 1 else 'rows'}",
            got=f"{rows} in {_text_of(tensor)}",
        )
    if not least <= rows <= most:
        taken = f"{most}" if rows > most else f"at least {least}"
        raise InputError(
            f"the engine takes {taken} rows at once",
            key=key,
            expected=port.text(),
            got=f"{rows}",
            hint=None if rows > most else "An output without batch axis depends on all of them.",
        )
    if not alone:
        return tensor
    if isinstance(tensor, Foreign):
        return tensor._replace(shape=(1, *tensor.shape))
    return tensor[None]


def _check_axes(tensor: Tensor, port: Port, key: str) -> None:
    """Refuse a tensor whose rank or lengths do not fit the port; a sample of a batched port has one axis less."""
    missing = len(port.shape) - len(tensor.shape)
    if missing != 0 and not (port.batched and missing == 1):
        raise InputError("wrong rank", key=key, expected=_accepts(port), got=_text_of(tensor))
    first = 1 if port.batched else 0
    lengths = tensor.shape[first - missing :]
    for axis, length in enumerate(lengths, first):
        fixed = port.shape[axis]
        if fixed is not None and length != fixed:
            raise InputError("wrong shape", key=key, expected=_accepts(port), got=_text_of(tensor))
        if port.is_shape or fixed is not None:
            continue
        if not port.low[axis] <= length <= port.high[axis]:
            raise InputError(
                f"axis {axis} is outside of the range the engine was built for",
                key=key,
                expected=_accepts(port),
                got=_text_of(tensor),
                hint="Build with `profiles` that take it, or resize before.",
            )


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


def _accepts(port: Port) -> str:
    if not port.batched:
        return port.text()
    return f"{port.text(sample=True)} (one sample) or {port.text()} (`request_size` rows)"


def _text_of(tensor: Tensor) -> str:
    text = f"{tensor.dtype} [{', '.join(map(str, tensor.shape))}]"
    return f"{text} on the device" if isinstance(tensor, Foreign) else text
