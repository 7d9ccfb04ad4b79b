"""Results of a pipeline as tensors: arrays unchanged, text as BYTES, everything else as JSON text."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import ItemsView, KeysView, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pydantic

from headrace.errors import ContractError, InputError, RequestsFailed
from headrace_formats import FormatError, write_json
from headrace_serve.datatypes import (
    datatype_of,
    from_numbers,
)
from headrace_serve.errors import NotJsonError
from headrace_serve.inference.messages import Tensor
from headrace_tensors import DATATYPES, bf16_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port

__all__ = ["JSON", "as_json_text", "as_plain_array", "elements_of", "outputs_of", "tensors_of"]

JSON = "application/json"

T = TypeVar("T")


_DEEPEST = 4

_PLAIN: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(
    Any, config=pydantic.ConfigDict(ser_json_inf_nan="constants")
)

_LISTS: Any = (set, frozenset, deque, type({}.keys()), type({}.values()), type({}.items()))
"""Types of results that are lists to a client."""

_TOO_FINE = ("ns", "ps", "fs", "as")
"""Units of times of numpy that Python's have not; numpy would give numbers in their place."""


def elements_of(value: Any, depth: int = 0) -> int:
    """Estimate how many elements of a result Python writes one by one, those of lists by the first of each.

    Args:
        value: The result, or a part of it.
        depth: How deep the part lies in the result. An array that is a whole result, or an output of it, needs none.
    """
    if isinstance(value, np.ndarray):
        return value.size if depth > 1 or value.dtype.kind in "OSU" else 0
    if isinstance(value, (list, tuple)) and value and depth < _DEEPEST:
        return len(value) * max(1, elements_of(value[0], depth + 1))
    if isinstance(value, dict) and depth < _DEEPEST:
        return sum([elements_of(inner, depth + 1) for inner in value.values()])
    return 1


def tensors_of(
    model: Model, results: Sequence[Any], *, by_item: bool, wanted: list[str] | None
) -> list[Tensor]:
    """Return the outputs of a model.

    Args:
        model: The model.
        results: The ``result`` of each request of the pipeline: one, or one per item.
        by_item: Whether each result is one item. The items' results are then joined along a new first axis.
        wanted: The names of the outputs, in the order of the answer. None: all.

    Raises:
        ContractError: A result lacks an output, or can be written neither as a tensor nor as JSON.
        NotJsonError: A result has to be written as JSON, and holds NaN or infinity.
        RequestsFailed: The results of items have these errors.
    """
    names = list(model.signature.outputs)
    tensors = []
    for name in _given(model, names if wanted is None else wanted, results):
        single = len(names) == 1
        if by_item:
            values = _each(partial(_part, model, name=name, single=single), results)
        else:
            values = [_part(model, results[0], name, single=single)]
        tensors.append(_tensor(model, name, values, by_item=by_item))
    return tensors


def _each(function: Callable[[Any], T], results: Iterable[Any]) -> list[T]:
    """Call the function for the result of each item.

    Raises:
        RequestsFailed: The function has raised ContractError or NotJsonError.
    """
    arrays: list[T] = []
    errors: list[BaseException | None] = []
    for result in results:
        error: BaseException | None = None
        try:
            arrays.append(function(result))
        except (ContractError, NotJsonError) as raised:
            error = raised
        errors.append(error)
    if len(arrays) < len(errors):
        raise RequestsFailed(errors)
    return arrays


def outputs_of(model: Model, result: Any) -> dict[str, Any]:
    """Give the outputs of one result by name, unchanged.

    Raises:
        ContractError: The result has no such output.
    """
    names = model.signature.outputs
    given = _given(model, names, [result])
    return {name: _part(model, result, name, single=len(names) == 1) for name in given}


def _given(model: Model, names: Iterable[str], results: Sequence[Any]) -> list[str]:
    """Return the names of outputs without those that a model may leave out, and has left out."""
    ports = model.signature.outputs
    return [
        name
        for name in names
        if not ports[name].optional or any(not isinstance(o, dict) or name in o for o in results)
    ]


def _part(model: Model, result: Any, name: str, *, single: bool) -> Any:
    """Return one output of a result: the whole result if it is the model's only output, else its value of that name."""
    if single and not (isinstance(result, dict) and name in result and name != "result"):
        return _read(result)
    if not isinstance(result, dict) or name not in result:
        raise ContractError(
            f"model {model.name!r} gave no output {name!r}",
            hint="Its result must be a dict with a value for each output of its signature.",
        )
    return _read(result[name])


def _read(value: Any) -> Any:
    """Return the owner of a buffer: bytes, or the array that it is a view of; a list of a set and the like; else the value."""
    if isinstance(value, _LISTS):
        return list(value)
    if isinstance(value, memoryview) and (value.ndim != 1 or value.format not in "Bc"):
        return np.asarray(value)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _tensor(model: Model, name: str, values: list[Any], *, by_item: bool) -> Tensor:
    port = model.signature.outputs[name]
    if by_item and not values:
        shape = (0, *(max(axis, 0) for axis in port.shape[1:]))
        return Tensor(name, port.datatype, shape, np.empty(shape, DATATYPES[port.datatype]))
    only = values[0]
    # Most results are one array of numbers, which needs none of the work below.
    if not by_item and type(only) is np.ndarray and only.dtype.kind in "biuf":
        datatype = datatype_of(only)
        said = not port.declared or (datatype == port.datatype and port.fits(only.shape))
        if datatype is not None and port.datatype != "BF16" and said:
            return Tensor(name, datatype, only.shape, only)
    read = partial(_as_declared, port, item=by_item) if port.declared else as_plain_array
    arrays = _each(read, values) if by_item else [read(only)]
    known = [array for array in arrays if array is not None]
    alike = len({(port.declared or array.dtype, array.shape) for array in known}) == 1
    if port.declared and len(known) == len(values) and not alike:
        raise _unequal(port, known)
    if len(known) == len(values) and (not by_item or alike):
        array = known[0]
        if by_item:
            array = np.stack(known) if port.declared else _joined(known)
        if port.datatype == "BF16" and array.dtype == np.float32:  # numpy has no BF16
            return Tensor(name, "BF16", array.shape, bf16_bits(array))
        datatype = datatype_of(array)
        if datatype is not None:
            return Tensor(name, datatype, array.shape, array)
    is_json = not _texts(values)
    written = partial(_as_text, is_json=is_json)
    texts = _objects(_each(written, values) if by_item else [as_json_text(only)])
    parameters = {"content_type": JSON} if is_json else {}
    return Tensor(name, "BYTES", texts.shape, texts, parameters)


def _as_declared(port: Port, value: Any, *, item: bool) -> NDArray[Any] | None:
    """Convert a result as `as_plain_array` does, and Python numbers to an array of the declared datatype.

    Raises:
        ContractError: The result is not what the entry of the model declares.
    """
    axes = port.shape[1:] if item else port.shape
    plain = "FP32" if port.datatype == "BF16" else port.datatype
    array = _as_array(value, plain, axes)
    if array is None and plain == "BYTES" and len(axes) == (0 if item else 1):
        return None  # one element of JSON text
    if array is None:
        got = type(value).__name__
    else:
        datatype = datatype_of(array)
        if datatype in (plain, port.datatype) and port.fits(array.shape, item=item):
            return array
        got = f"{datatype or array.dtype} {list(array.shape)}"
    raise ContractError(
        f"output {port.name!r} is declared as {port.datatype} {list(axes)}, and the result is {got}"
    )


def _as_array(value: Any, datatype: str, axes: tuple[int, ...]) -> NDArray[Any] | None:
    """Return a result as an array with these axes, if it is one, or a list of what lies along the first of them.

    An empty list has no elements that could show the axes inside of it: they are the declared ones, and 0 where any
    length is allowed.

    Args:
        value: The result, or what lies along the axes that are left.
        datatype: The datatype of its numbers.
        axes: The length of each axis, -1 for any.
    """
    if isinstance(value, (list, tuple)):
        if not axes:
            return None
        if not value:
            return np.empty([0, *(max(axis, 0) for axis in axes[1:])], DATATYPES[datatype])
        if datatype != "BYTES" and not _holds_arrays(value):
            with contextlib.suppress(InputError, ValueError, OverflowError):
                array = from_numbers(datatype, value)
                if array.size:
                    return array
        parts = [_as_array(element, datatype, axes[1:]) for element in value]
        arrays = [part for part in parts if part is not None]
        alike = len({array.shape for array in arrays}) == 1
        return np.stack(arrays) if alike and len(arrays) == len(value) else None
    if isinstance(value, (bool, int, float)) and datatype != "BYTES":
        with contextlib.suppress(InputError, ValueError, OverflowError):
            return from_numbers(datatype, value)
    if isinstance(value, (str, bytes)) and not axes and datatype == "BYTES":
        return _objects([value]).reshape(())
    return as_plain_array(value)


def _holds_arrays(value: Any) -> bool:
    """Return whether the innermost first element of nested lists is an array or a tensor."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return not isinstance(value, (bool, int, float, list, tuple))


def _unequal(port: Port, arrays: Sequence[NDArray[Any]]) -> InputError:
    """Return the error for items whose results are no tensor together, because an axis of theirs differs in length."""
    first = arrays[0]
    index, other = next((i, array) for i, array in enumerate(arrays) if array.shape != first.shape)
    return InputError(
        f"output {port.name!r} is {list(first.shape)} for item 0, and {list(other.shape)} for item"
        f" {index}, which are no tensor together",
        hint="Send such items in requests of their own.",
    )


def _as_text(value: Any, *, is_json: bool) -> str | bytes:
    """Return a result as an element of BYTES; with ``is_json`` a text as JSON too, since clients read all elements as JSON."""
    return value if isinstance(value, bytes if is_json else (str, bytes)) else as_json_text(value)


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Join the arrays of items along a new first axis; the one-element arrays of text and bytes are concatenated."""
    if arrays[0].dtype == object and arrays[0].ndim == 1 and all(len(each) == 1 for each in arrays):
        return np.concatenate(arrays)
    return arrays[0][np.newaxis] if len(arrays) == 1 else np.stack(arrays)


def as_plain_array(value: Any) -> NDArray[Any] | None:
    """Return a result as an array if it is a tensor, a text, bytes, or a list of texts and bytes; else None."""
    if isinstance(value, np.ma.MaskedArray):
        return None  # a tensor has no place for what is masked; JSON has null
    if isinstance(value, np.ndarray):
        mixed = value.dtype == object and not _texts(value.reshape(-1))
        return None if mixed else np.asarray(value)  # of a class such as memmap, too
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, (str, bytes)):
        return _objects([value])
    if isinstance(value, (list, tuple)) and value and _texts(value):
        return _objects(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    return None


def _texts(values: Any) -> bool:
    return all(isinstance(value, (str, bytes)) for value in values)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _from_dlpack(value: Any) -> NDArray[Any]:
    """Return the array of a tensor on the CPU; torch's BF16, which numpy does not have, as the float32 of the same values."""
    if str(getattr(value, "dtype", None)) == "torch.bfloat16":
        value = value.float()
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ContractError(
            f"the result is a {type(value).__name__} that numpy cannot read: {error}",
            hint="End the expression with a backend that copies it to the CPU, as CpuTensor does.",
        ) from error


def as_json_text(value: Any) -> str:
    """Return a result that is no tensor as JSON text.

    Arrays inside of it become lists. All other values, and keys, are what pydantic writes for them, and paths are text.

    Raises:
        NotJsonError: The result holds NaN, infinity, half of a surrogate pair, or one name twice.
        ContractError: The result holds something else for which JSON has no form.
    """
    try:
        try:
            return write_json(value, strict=True)
        except TypeError:  # a value, or a key, that JSON has not: the whole is made plain, and iterators are read once
            how: Any = {"mode": "json", "fallback": _known_to_pydantic, "warnings": False}
            return write_json(_PLAIN.dump_python(value, **how), strict=True)
    except FormatError as error:
        raise NotJsonError(f"the result cannot be written as JSON: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise ContractError(f"the result cannot be written as JSON: {error}") from error


def _known_to_pydantic(value: Any) -> Any:
    """Return what stands for a value of a type that pydantic does not know.

    Raises:
        TypeError: JSON has no form for it.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind in "Mm" and np.datetime_data(value.dtype)[0] in _TOO_FINE:
            value = value.astype(f"{value.dtype.kind}8[us]")
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, memoryview):
        return _read(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (KeysView, ValuesView, ItemsView, Sequence, AbstractSet)):
        return list(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value).tolist()
    if hasattr(value, "tolist"):  # a column of pandas
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")
