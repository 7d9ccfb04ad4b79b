"""Reads values of callers as numpy arrays of a model's dtype; Python numbers become it if nothing is lost."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError
from headrace_tensors.ports import STRING
from headrace_tensors.reading import text_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace_tensors.ports import Port

__all__ = ["array_of_numbers", "host_array", "is_plain", "numpy_dtype", "refuse_masked"]

_EXTENDED: Final = ("bfloat16", "float8_e4m3fn")
_WIDENS: Final = {"b": "b", "i": "iuf", "u": "iuf", "f": "f", "U": "O"}
"""For each kind of numpy dtype of Python values, the kinds to which they may be converted."""


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's dtype by name. That of strings is object, bfloat16 and fp8 come from ml_dtypes.

    Raises:
        InputError: ml_dtypes is not installed, and numpy alone has no such type.
    """
    import numpy as np

    if name not in _EXTENDED:
        return np.dtype(object if name == STRING else name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise InputError(
            f"numpy has no {name}", hint="`pip install ml_dtypes` brings it; or use a device array."
        ) from error
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


def is_plain(value: Any) -> bool:
    """Return whether ``value`` is a Python number or string, or a list of them, without a dtype.

    A list that contains itself has no end: numpy, which reads 64 axes at most, refuses what is deeper.
    """
    for _ in range(64):
        if not isinstance(value, (list, tuple)) or not value:
            break
        value = value[0]
    return isinstance(value, (bool, int, float, str, list, tuple)) and not hasattr(value, "dtype")


_IS_A_FILE = "The bytes of a file are no array: steps before the model decode them, as DecodeMat does for a picture."
_IS_A_PICTURE = "A picture, uint8 [H, W, C], becomes float32 [C, H, W] by Mat2Tensor of headrace-cv: write it before this backend."


def host_array(value: Any, port: Port, key: str = "data") -> NDArray[Any]:
    """Read ``value`` as an array of the port's dtype. The dtype of an array is never converted.

    Python numbers, strings and lists of them carry no dtype: they get the port's, unless a value would not fit. An
    array that numpy or DLPack can read must have the port's dtype.

    Args:
        value: An array of any library in host memory, a number or string, or nested lists of them.
        port: The input.
        key: The key of the request with the value, for errors.

    Raises:
        InputError: ``value`` is no array, is masked, has another dtype, or its numbers do not fit the port's dtype.
    """
    import numpy as np

    dtype = numpy_dtype(port.dtype)
    if type(value) is np.ndarray and value.dtype == dtype and dtype.kind != "O":
        return value
    refuse_masked(value, key)
    plain = is_plain(value)
    try:
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            array = np.from_dlpack(value)
        else:
            array = _read(value, dtype) if plain else np.asarray(value)
    except Exception as error:  # a foreign array may raise anything
        raise InputError(
            f"this is nothing numpy can read ({error})",
            key=key,
            expected=port.accepts(),
            got=type(value).__name__,
        ) from error
    converted = array.astype(object) if array.dtype.kind in "UT" and dtype.kind == "O" else array
    if converted.dtype != dtype:
        widened = array_of_numbers(converted, dtype) if plain else None
        if widened is None:
            raise _wrong_dtype(value, array, port, key, plain=plain)
        converted = widened
    if dtype.kind == "O":
        if not all(isinstance(text, str) for text in converted.ravel()):
            raise _wrong_dtype(value, array, port, key, plain=plain)
        _check_texts(converted, key)
    return converted


def refuse_masked(value: Any, key: str = "data") -> None:
    """Refuse a masked array of numpy, also in a list: a model would get the numbers behind its mask.

    Raises:
        InputError: It is one.
    """
    import numpy as np

    for part in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(part, np.ma.MaskedArray):
            raise InputError(
                "a model has no masked values",
                key=key,
                expected="an array without mask",
                got="numpy.ma.MaskedArray",
                hint="array.filled(VALUE) puts a number in their place.",
            )


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


def _wrong_dtype(value: Any, array: Any, port: Port, key: str, *, plain: bool) -> InputError:
    """Make the error of an array of another dtype, or of Python numbers that are too large or too small."""
    import numpy as np

    problem, got = "wrong dtype", text_of(array)
    if type(value) is not np.ndarray:
        got = f"{got} from {type(value).__name__}"
    kind = _kind(numpy_dtype(port.dtype))
    if (
        plain
        and array.size
        and array.dtype.kind != "U"
        and kind in _WIDENS.get(array.dtype.kind, "")
    ):
        problem = f"a number does not fit {port.dtype}"
        got = f"{np.nanmin(array)} to {np.nanmax(array)} in {got}"
    hint = None
    if _is_picture_for(port, array):
        hint = _IS_A_PICTURE
    elif array.dtype.kind == "f" and kind == "f" and hasattr(np, str(port.dtype)):
        hint = f"array.astype({port.dtype!r}) converts it, or Call(numpy:{port.dtype}) before the model."
    if isinstance(value, bytes) and kind != "O":
        got, hint = f"{len(value)} bytes", _IS_A_FILE
    return InputError(problem, key=key, expected=port.accepts(), got=got, hint=hint)


def _is_picture_for(port: Port, array: NDArray[Any]) -> bool:
    """Return whether an array looks like a picture, and the port like that of a network that takes one as a tensor."""
    if array.dtype != "uint8" or array.ndim != 3 or port.dtype != "float32" or not port.batched:
        return False
    channels = array.shape[2]
    if channels not in (1, 3, 4) or port.axis or port.shape is None or len(port.shape) != 4:
        return False
    return port.shape[1] == channels or (port.shape[1] is None and port.shape[3] != channels)


def _kind(dtype: np.dtype[Any]) -> str:
    return (
        "f" if dtype.kind == "V" else dtype.kind
    )  # numpy does not know bfloat16 and fp8 as floats


def _read(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return Python numbers or strings as an array with unchanged values.

    numpy alone would convert numbers beside a text to texts, a mix of integers above and below 2**63 to floats, and
    keep integers of more than 64 bits as objects.
    """
    import numpy as np

    if dtype.kind == "O":
        return np.asarray(value, object)
    array = np.asarray(value)
    if array.dtype.kind == "f" and dtype == np.uint64:
        exact = np.asarray(value, object)
        if all(type(number) is int and 0 <= number < 1 << 64 for number in exact.flat):
            return exact.astype(dtype)
    wide = array.dtype.kind == "O" and _kind(dtype) == "f"
    if wide and all(type(number) in (int, float) for number in array.flat):
        try:
            return array.astype(np.float64)
        except OverflowError:
            return array
    return array


def array_of_numbers(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return an array of Python numbers in another dtype. None if a value would change.

    Integers become floats and floats shorter floats, as long as none becomes infinite.
    """
    import numpy as np

    kind = _kind(dtype)
    if array.size and kind not in _WIDENS.get(array.dtype.kind, ""):
        return None
    if array.size and kind in "iu":
        bounds = np.iinfo(dtype)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            return None
    with np.errstate(over="ignore", invalid="ignore"):
        cast: NDArray[Any] = array.astype(dtype)
    tests = (np.isfinite, np.isnan) if kind == "f" and array.size else ()
    return cast if all(np.array_equal(test(cast), test(array)) for test in tests) else None
