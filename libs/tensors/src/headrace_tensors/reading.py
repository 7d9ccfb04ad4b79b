"""Reads the tensors of one request: one sample, or rows, of the shapes that the model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import InputError
from headrace_tensors.ports import counted_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace_tensors.ports import Port, Signature

__all__ = ["Item", "check_axes", "check_equal_axes", "read_item", "text_of", "with_rows"]


class Item(NamedTuple):
    """The inputs of one request for a run.

    Attributes:
        tensors: A tensor for each input in the request, in host or device memory. Tensors of batched inputs begin with
            the batch axis.
        rows: The length of the batch axis.
        sample: Whether the request brought one sample, without batch axis.
        empty: Whether the request brought no row. A row of zeros stands for it, and is in no result: many models do
            not run without a row.
    """

    tensors: Mapping[str, Any]
    rows: int
    sample: bool
    empty: bool = False


def text_of(tensor: Any) -> str:
    """Return ``float32 [3, 48]`` for a tensor of any library."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} [{', '.join(map(str, tensor.shape))}]"


def read_item(
    request: Mapping[str, Any],
    signature: Signature,
    keys: Mapping[str, str],
    read: Callable[[Any, Any, str], Any],
    *,
    from_data: bool = False,
    is_sample: Callable[[Mapping[str, Any], Any], bool] | None = None,
    text: Callable[[Any], str] = text_of,
    takes_empty: bool = False,
) -> Item:
    """Read the inputs of a model from a request.

    Args:
        request: A request. ``request_size`` (default 1) is the number of rows it must have.
        signature: Inputs and outputs of the model.
        keys: The key of the request for each input name. An optional input may lack one, and is then never read.
        read: Makes a tensor of a value. Called with the value, the port and the key. The tensor has the ``shape`` of
            a numpy array, and ``tensor[None]`` has one more first axis.
        from_data: Whether ``data`` may also be a dict of values by input name, as concatenating several inputs makes it.
        is_sample: Tells of a port without a declared shape whether the request brought one sample.
        text: Describes a tensor, for errors.
        takes_empty: Whether a request may have no row. `Item.empty` then tells. It has numpy arrays.

    Raises:
        InputError: A key is missing, or its value has another dtype or shape than the model takes.
    """
    size = request.get("request_size", 1)
    data = request.get("data") if from_data else None
    tensors: dict[str, Any] = {}
    sample: bool | None = None
    empty = takes_empty and size == 0 and signature.fills
    for port in signature.inputs:
        key = keys.get(port.name)
        if type(data) is dict and port.name in data:
            value, key = data[port.name], key or port.name
        elif key is not None and key in request:
            value = request[key]
        elif port.optional:
            continue
        else:
            raise InputError("the request lacks a key", key=key, expected=port.accepts())
        tensor = read(value, port, key)
        if port.shape is None and is_sample is not None:
            alone = is_sample(request, tensor)
        else:
            alone = check_axes(tensor, port, key, text)
        if port.batched:
            if sample is not None and alone is not sample:
                raise InputError(
                    "some inputs of this request have a batch axis, others have none",
                    key=key,
                    expected=port.text(sample=sample),
                    got=text(tensor),
                )
            sample = alone
            rows = size
            if empty and not alone and tensor.shape[port.axis] == 0:
                tensor, rows = _row_of_zeros(tensor, port.axis), 1
            tensor = with_rows(tensor, port, key, rows, signature, sample=alone, text=text)
        tensors[port.name] = tensor
    return Item(tensors, 1 if empty else size, bool(sample), empty)


def _row_of_zeros(tensor: Any, axis: int) -> Any:
    """Return a row of zeros, or of empty texts, of the shape and dtype of a tensor without a row."""
    import numpy as np

    shape = (*tensor.shape[:axis], 1, *tensor.shape[axis + 1 :])
    return np.full(shape, "" if tensor.dtype == object else 0, tensor.dtype)


def check_axes(tensor: Any, port: Port, key: str, text: Callable[[Any], str] = text_of) -> bool:
    """Refuse a tensor whose rank or lengths do not fit a port. A sample of a batched port has one axis less.

    Returns:
        Whether the tensor is one sample, without batch axis.

    Raises:
        InputError: The rank, or the length of an axis, is not what the model takes.
    """
    shape = tuple(tensor.shape)
    exact = port.exact
    if exact is not None:
        if shape == exact:
            return True
        if not port.axis and shape[1:] == exact:
            return False
    missing = len(port.shape) - len(shape)
    if missing != 0 and not (port.batched and missing == 1):
        raise InputError("wrong rank", key=key, expected=port.accepts(), got=text(tensor))
    lengths = shape
    if port.batched and not missing:
        lengths = shape[: port.axis] + shape[port.axis + 1 :]
    for length, (axis, least, most) in zip(lengths, port._ranges, strict=True):
        if least <= length <= most:
            continue
        if port.shape[axis] is not None:
            hint = _hint_of_shape(lengths, exact)
            raise InputError(
                "wrong shape", key=key, expected=port.accepts(), got=text(tensor), hint=hint
            )
        raise InputError(
            f"axis {axis} is outside of the range that the model takes",
            key=key,
            expected=port.accepts(),
            got=text(tensor),
        )
    return bool(missing)


def _hint_of_shape(shape: tuple[int, ...], exact: tuple[int, ...] | None) -> str | None:
    """Return what to do about a picture of another size, or with its channels elsewhere."""
    if exact is None or len(shape) != 3 or len(exact) != 3 or min(exact) > 4:
        return None
    if sorted(shape) == sorted(exact):
        return "Its axes are in another order: array.transpose, or Mat2Tensor for a picture."
    places = [axis for axis in range(3) if exact[axis] > 4]
    size = ",".join(str(exact[axis]) for axis in places)
    same = len(places) == 2 and all(shape[axis] == exact[axis] for axis in {0, 1, 2} - {*places})
    return f"Resize the picture first: ResizeMat({size})." if same else None


def with_rows(
    tensor: Any,
    port: Port,
    key: str,
    size: int,
    signature: Signature,
    *,
    sample: bool,
    text: Callable[[Any], str] = text_of,
) -> Any:
    """Return a tensor with its batch axis first. The axis must be ``size`` long.

    Args:
        tensor: The tensor, of a rank that `check_axes` has taken.
        port: The input.
        key: The key of the request with the tensor, for errors.
        size: The request's ``request_size``.
        signature: Inputs and outputs of the model, whose range the rows must be in.
        sample: Whether the tensor is one sample, without batch axis.
        text: Describes a tensor, for errors.

    Raises:
        InputError: The tensor has another number of rows, or more or fewer than the model takes.
    """
    shape = tensor.shape
    rows = 1 if sample else (shape[port.axis] if len(shape) > port.axis else 0)
    if rows != size:
        raise InputError(
            "the number of rows is not `request_size`",
            key=key,
            expected=counted_rows(size),
            got=f"{rows} in {text(tensor)}",
        )
    least, most = signature.least_rows, signature.most_rows
    if rows < least or (most is not None and rows > most):
        only = f"{least}" if least == most else f"at least {least}"
        raise InputError(
            f"the {signature.label} takes {only if rows < least else most} rows at once",
            key=key,
            expected=port.text(),
            got=f"{rows}",
            hint="An output without batch axis depends on all of them." if rows < least else None,
        )
    if sample:
        return tensor[None]
    if port.axis:
        import numpy as np

        return np.moveaxis(tensor, port.axis, 0)
    return tensor


def check_equal_axes(item: Item, signature: Signature, keys: Mapping[str, str]) -> None:
    """Refuse an item whose inputs differ in the length of an axis that has one name in the model.

    An engine does so where the model cannot run, but padding would make the lengths equal.

    Raises:
        InputError: Two inputs differ. The key is that of the second.
    """
    known: dict[str, tuple[int, str]] = {}
    for port in signature.inputs:
        if not port.batched or port.name not in item.tensors:
            continue
        key = keys.get(port.name, port.name)
        lengths = item.tensors[port.name].shape[1:]
        for name, length in zip(port.sample_names, lengths, strict=False):
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
