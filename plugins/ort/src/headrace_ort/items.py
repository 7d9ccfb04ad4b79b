"""Reads the arrays of one request, converts plain Python values if nothing is lost, and checks the arrays."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_ort.device_arrays import DeviceView, is_on_device
from headrace_ort.signature import STRING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from headrace_ort.signature import Port, Signature

__all__ = ["Item", "as_array", "check_equal_axes", "counted_rows", "numpy_dtype", "read_item"]

_WIDENS = {"b": "b", "i": "iuf", "u": "iuf", "f": "f", "U": "O"}
"""For each kind of numpy dtype of Python values, the kinds to which they may be converted."""


@dataclass(frozen=True)
class Item:
    """The inputs of one request for a run.

    Attributes:
        arrays: An array for each input, of numpy or a `DeviceView`; those of batched inputs have a batch
            axis in front.
        rows: The length of the batch axis.
        sample: Whether the request brought one sample, without batch axis.
    """

    arrays: Mapping[str, Any]
    rows: int
    sample: bool


def numpy_dtype(port: Port) -> np.dtype[Any]:
    """Give the dtype of the arrays of a port."""
    return _dtype_of(port.dtype)


@functools.cache
def _dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(object if name == STRING else name)


def counted_rows(number: int) -> str:
    """Give ``1 row`` or ``2 rows``."""
    return f"{number} row" if number == 1 else f"{number} rows"


def read_item(
    request: Mapping[str, Any],
    signature: Signature,
    keys: Mapping[str, str],
    look: Callable[[Any, str], Any] | None = None,
) -> Item:
    """Read the inputs of a model from a request.

    Args:
        request: A request; ``request_size`` (default 1) is the number of rows it must have.
        signature: Inputs and outputs of the model.
        keys: The key of the request for each input name.
        look: Called first with each value and its key; it may return a `DeviceView` to use instead. None: no device.

    Raises:
        InputError: A key is missing, or its value has another dtype or shape than the model's.
    """
    size = request.get("request_size", 1)
    arrays: dict[str, Any] = {}
    sample: bool | None = None
    for port in signature.inputs:
        key = keys[port.name]
        if key not in request:
            raise InputError("the request lacks a key", key=key, expected=_accepts(port))
        value = request[key] if look is None else look(request[key], key)
        array = as_array(value, port, key)
        _check_axes(array, port, key)
        if port.batched:
            alone = array.ndim == len(port.shape) - 1
            if sample is not None and alone is not sample:
                raise InputError(
                    "some inputs of this request have a batch axis, others have none",
                    key=key,
                    expected=port.text(sample=sample),
                    got=_text_of(array),
                )
            sample = alone
            array = _with_rows(array, port, key, size, fills=signature.fills)
        arrays[port.name] = array
    return Item(arrays, size, bool(sample))


def check_equal_axes(item: Item, signature: Signature, keys: Mapping[str, str]) -> None:
    """Refuse an item whose inputs differ in the length of an axis that has one name in the model.

    ONNX Runtime does so where the model cannot run; but padding would make the lengths equal.

    Raises:
        InputError: Two inputs differ; the key is that of the second.
    """
    known: dict[str, tuple[int, str]] = {}
    for port in signature.inputs:
        if not port.batched:
            continue
        key = keys[port.name]
        lengths = item.arrays[port.name].shape[1:]
        for name, length in zip(port.sample_names, lengths, strict=True):
            if name is None:
                continue
            first, of = known.setdefault(name, (length, key))
            if first != length:
                raise InputError(
                    f"the axis {name!r} differs between inputs of this request",
                    key=key,
                    expected=f"{first}, as in {of!r}",
                    got=str(length),
                )


def as_array(value: Any, port: Port, key: str = "data") -> Any:
    """Give ``value`` as an array of the port's dtype; the dtype of an array is never converted.

    Python numbers, strings and lists of them carry no dtype: they get the port's, unless a value
    would not fit. An array that numpy or DLPack can read must have the port's dtype.

    Raises:
        InputError: ``value`` is no array, is on a device that the session does not use, has another dtype, or its
            numbers do not fit the port's dtype.
    """
    wanted = numpy_dtype(port)
    if type(value) is np.ndarray and value.dtype == wanted and wanted.kind != "O":
        return value
    if isinstance(value, DeviceView):
        if not port.batched:
            raise InputError(
                "an input without batch axis is read on the CPU",
                key=key,
                expected=f"{_accepts(port)} on the CPU",
                got=f"{_text_of(value)} on the device",
                hint="CpuTensor before it moves it.",
            )
        if value.dtype == wanted:
            return value
    try:
        array = _array_of(value, wanted)
    except Exception as error:  # a foreign array may raise anything
        if is_on_device(value):
            raise _on_other_device(value, port, key) from error
        raise InputError(
            f"this is nothing numpy can read ({error})",
            key=key,
            expected=_accepts(port),
            got=type(value).__name__,
        ) from error
    converted = _of_dtype(array, wanted, plain=_is_plain(value))
    if converted is None:
        raise _wrong_dtype(value, array, port, key)
    if wanted.kind == "O":
        _check_texts(converted, key)
    return converted


def _array_of(value: Any, wanted: np.dtype[Any]) -> Any:
    if isinstance(value, DeviceView):
        return value
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return _read(value, wanted) if _is_plain(value) else np.asarray(value)


def _check_texts(texts: NDArray[Any], key: str) -> None:
    """Refuse texts that UTF-8, in which a model gets them, cannot express: with half of a surrogate pair."""
    try:
        "".join(texts.flat).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            "a text is no Unicode",
            key=key,
            expected="whole characters",
            got=ascii(error.object[error.start]),
        ) from None


def _wrong_dtype(value: Any, array: Any, port: Port, key: str) -> InputError:
    """Make the error of an array of another dtype, or of Python numbers that are too large or too small."""
    what, got = "wrong dtype", _text_of(array, type(value))
    widens = numpy_dtype(port).kind in _WIDENS.get(array.dtype.kind, "")
    if widens and _is_plain(value) and array.size:
        what = f"a number does not fit {port.dtype}"
        got = f"{np.nanmin(array)} to {np.nanmax(array)} in {got}"
    return InputError(what, key=key, expected=_accepts(port), got=got)


def _on_other_device(value: Any, port: Port, key: str) -> InputError:
    """Make the error of an array on a CUDA device, which a session on the CPU cannot read."""
    where = getattr(value, "__dlpack_device__", None)
    device = f"cuda:{where()[1]}" if where is not None else "a CUDA device"
    return InputError(
        "the array lies on another device than the session",
        key=key,
        expected=f"{_accepts(port)} on the CPU",
        got=f"{type(value).__name__} on {device}",
        hint="CpuTensor before it moves it, or `device` lets the session compute there.",
    )


def _of_dtype(array: Any, wanted: np.dtype[Any], *, plain: bool) -> NDArray[Any] | None:
    """Give an array of the wanted dtype; None if it has another dtype, or a plain value would have to change."""
    if isinstance(array, DeviceView):
        return None
    if array.dtype.kind in "UT" and wanted.kind == "O":
        array = array.astype(object)
    if array.dtype != wanted:
        return _widened(array, wanted) if plain else None
    if wanted.kind == "O" and not all(isinstance(text, str) for text in array.ravel()):
        return None
    same: NDArray[Any] = array
    return same


def _is_plain(value: Any) -> bool:
    """Return whether ``value`` is a Python number or string, or a list of them, without a dtype.

    A list that contains itself has no end: numpy, which reads 64 axes at most, refuses what is deeper.
    """
    for _ in range(64):
        if not isinstance(value, (list, tuple)) or not value:
            break
        value = value[0]
    return isinstance(value, (bool, int, float, str, list, tuple)) and not hasattr(value, "dtype")


def _read(value: Any, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Give Python numbers or strings as an array with unchanged values.

    numpy alone would convert numbers beside a text to texts, a mix of integers above and below 2**63 to floats, and
    keep integers of more than 64 bits as objects.
    """
    if wanted.kind == "O":
        return np.asarray(value, object)
    array = np.asarray(value)
    if array.dtype.kind == "f" and wanted == np.uint64:
        exact = np.asarray(value, object)
        if all(type(one) is int and 0 <= one < 1 << 64 for one in exact.flat):
            return exact.astype(wanted)
    wide = array.dtype.kind == "O" and wanted.kind == "f"
    if wide and all(type(one) in (int, float) for one in array.flat):
        return array.astype(np.float64)
    return array


def _widened(array: NDArray[Any], wanted: np.dtype[Any]) -> NDArray[Any] | None:
    if array.size and wanted.kind not in _WIDENS.get(array.dtype.kind, ""):
        return None
    if array.size and wanted.kind in "iu":
        bounds = np.iinfo(wanted)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            return None
    try:
        with np.errstate(over="raise"):
            return array.astype(wanted)
    except FloatingPointError:
        return None


def _with_rows(
    array: NDArray[Any], port: Port, key: str, size: int, *, fills: bool
) -> NDArray[Any]:
    """Give the array with its batch axis, which must be ``size`` long, in front.

    If a run may not be filled up (``fills``), it must also be as long as a fixed batch axis of the model.
    """
    rows = 1 if array.ndim < len(port.shape) else array.shape[port.axis]
    most = port.shape[port.axis]
    if rows != size:
        raise InputError(
            "the number of rows is not `request_size`",
            key=key,
            expected=counted_rows(size),
            got=f"{rows} in {_text_of(array)}",
        )
    if most is not None and (rows > most or (rows < most and not fills)):
        raise InputError(
            f"the model takes {most} rows at once",
            key=key,
            expected=port.text(),
            got=f"{rows}",
            hint=None if fills else "An output without batch axis depends on all of them.",
        )
    if array.ndim < len(port.shape):
        return array[None]
    return np.moveaxis(array, port.axis, 0) if port.axis else array


def _check_axes(array: NDArray[Any], port: Port, key: str) -> None:
    """Refuse an array whose rank or lengths do not fit the port; a sample of a batched port has one axis less."""
    exact = port.exact
    if exact is not None and (array.shape == exact or (not port.axis and array.shape[1:] == exact)):
        return
    missing = len(port.shape) - array.ndim
    if missing != 0 and not (port.batched and missing == 1):
        raise InputError("wrong rank", key=key, expected=_accepts(port), got=_text_of(array))
    lengths = list(array.shape)
    if port.batched and not missing:
        del lengths[port.axis]
    wanted = port.sample_shape if port.batched else port.shape
    if any(
        fixed is not None and length != fixed for length, fixed in zip(lengths, wanted, strict=True)
    ):
        raise InputError("wrong shape", key=key, expected=_accepts(port), got=_text_of(array))


def _accepts(port: Port) -> str:
    if not port.batched:
        return port.text()
    return f"{port.text(sample=True)} (one sample) or {port.text()} (`request_size` rows)"


def _text_of(array: Any, kind: type | None = None) -> str:
    text = f"{array.dtype} [{', '.join(map(str, array.shape))}]"
    return text if kind in (None, np.ndarray, DeviceView) else f"{text} from {kind.__name__}"
