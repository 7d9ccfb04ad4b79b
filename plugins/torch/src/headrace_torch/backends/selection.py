"""`SoftmaxTensor`, `ArgMaxTensor`, `TopKTensor`, `IndexSelectTensor`: along one axis of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

import headrace
from headrace.errors import InputError
from headrace_torch.backends.base import PerTensor, read_key
from headrace_torch.backends.fields import Dim

if TYPE_CHECKING:
    from collections.abc import Hashable

    import torch
    from typing_extensions import Self

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["ArgMaxTensor", "IndexSelectTensor", "SoftmaxTensor", "TopKTensor"]


_LONGEST = (1 << 63) - 1
_Index = Annotated[int, Field(ge=-_LONGEST, le=_LONGEST)]
_NOT_COMPUTED = ("bool", "complex", "uint16", "uint32", "uint64", "float8", "float4")
"""Prefixes of the dtypes that are not real numbers, or that torch stores but does not compute with."""


class _AlongDim(PerTensor):
    """A backend that computes a function along one axis of each sample."""

    class Options(headrace.Options):
        """The axis.

        Attributes:
            dim: Axis of one sample (an index, negative from end).
        """

        dim: Dim = -1

        positional = ("dim",)

    kinds: ClassVar[str] = "real"

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the axis."""
        self._options = options
        self._dim: int = options.dim if options.dim < 0 else options.dim + 1  # after the rows

    def check(self, rows: torch.Tensor) -> None:
        """Refuse samples without the axis or with a shorter axis, and other dtypes."""
        from headrace_torch.requests.tensors import refused

        axes, dim = rows.ndim - 1, self._options.dim
        if not -axes <= dim < axes:
            raise refused(f"a sample has no axis {dim}", self.expected, rows)
        dtype = str(rows.dtype).removeprefix("torch.")
        computed = self.kinds == "any" or not dtype.startswith(_NOT_COMPUTED)
        if not computed or (self.kinds == "floating" and not rows.is_floating_point()):
            raise refused("wrong dtype", self.expected, rows)
        if rows.shape[self._dim] < self.least:
            problem = f"the axis {dim} is too short"
            raise refused(problem, f"at least {self.least} along it", rows)

    @property
    def least(self) -> int:
        """The shortest length that the axis may have."""
        return 1


class SoftmaxTensor(_AlongDim):
    """Turn scores into probabilities that add up to 1 along an axis.

    Reads:
        data: Floating, any shape with that axis: a sample, or with ``request_size = N`` N rows of
            samples.

    Writes:
        result: Same dtype and shape, new memory.

    Batch:
        1 or more. Samples of one shape are computed in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no such tensor, or on another device.

    Source:
        torch's ``softmax``.
    """

    expected = "a floating tensor: a sample, or rows with request_size"
    kinds = "floating"

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Return the probabilities."""
        return whole.softmax(self._dim)


class ArgMaxTensor(_AlongDim):
    """Return the index of the greatest value along an axis.

    If several values are the greatest, the index of any of them is given. NaN counts as the greatest.

    Reads:
        data: Real numbers (no ``uint16``, ``uint32``, ``uint64``, ``float8``), any shape with that axis: a sample, or
            with ``request_size = N`` N rows of samples.

    Writes:
        result: ``int64``, the shape without that axis; for a sample with one axis, a tensor without
            axes. New memory.

    Batch:
        1 or more. Samples of one shape are computed in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no such tensor, or on another device.

    Source:
        torch's ``argmax``.
    """

    expected = "a tensor of real numbers: a sample, or rows with request_size"

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Return the indices."""
        return whole.argmax(self._dim)


class TopKTensor(_AlongDim):
    """Return the greatest values along an axis, the greatest first, and their indices.

    Reads:
        data: Real numbers, any shape with at least k along that axis: a sample, or with
            ``request_size = N`` N rows of samples.

    Writes:
        result: ``{"values": ..., "indices": ...}``: the values of the dtype of ``data``, the indices
            ``int64``; the axis is k long in both. New memory.

    Batch:
        1 or more. Samples of one shape are computed in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no such tensor, or on another device.

    Source:
        torch's ``topk``.
    """

    class Options(headrace.Options):
        """How many, and the axis.

        Attributes:
            k: How many values to give.
            dim: Axis of one sample (an index, negative from end).
        """

        k: int = Field(ge=1, le=_LONGEST)
        dim: Dim = -1

        positional = ("k", "dim")

    expected = "a tensor of real numbers with at least k along the axis: a sample, or rows with request_size"

    @property
    def least(self) -> int:
        """The option ``k``: the axis must be at least as long."""
        k: int = self._options.k
        return k

    def compute(self, whole: torch.Tensor, how: Any) -> Any:
        """Return values and indices."""
        return whole.topk(self._options.k, self._dim)

    def give(self, batch: list[Request], result: Any, *, hands_on: bool = False) -> None:
        """Give each sample its row of values and indices."""
        rows = zip(batch, result.values.unbind(0), result.indices.unbind(0), strict=True)
        for request, values, indices in rows:
            request["result"] = {"values": values, "indices": indices}

    def all_rows(self, result: Any) -> Any:
        """Return all rows of values and indices as a table."""
        return {"values": result.values, "indices": result.indices}

    def rows_of(self, result: Any, start: int, stop: int, *, sample: bool) -> Any:
        """Return some rows of values and indices as a table."""
        place = start if sample else slice(start, stop)
        return {"values": result.values[place], "indices": result.indices[place]}


class IndexSelectTensor(_AlongDim):
    """Select the values at some indices along an axis, in the order of the indices.

    Reads:
        data: Any dtype, any shape with that axis: a sample, or with ``request_size = N`` N rows of
            samples.
        key: Indices under the key named by this option, if it is set: a list or an array of whole
            numbers, negative numbers from the end.

    Writes:
        result: Same dtype and number of dimensions; along the axis as long as the indices. New
            memory.

    Batch:
        1 or more. Samples of one shape and with equal indices are computed in one call, a bad item
        fails alone.

    Raises:
        InputError: ``data`` is missing, no such tensor, or on another device. The indices are
            missing, something else, or outside of the axis.

    Source:
        torch's ``index_select``.
    """

    class Options(headrace.Options):
        """The indices, and the axis.

        Attributes:
            index: The indices of all requests, or one; negative ones from the end.
            key: Key of the request that holds the indices, in place of the option.
            dim: Axis of one sample (an index, negative from end).
        """

        index: Annotated[tuple[_Index, ...], Field(min_length=1)] | None = None
        key: str | None = Field(default=None, min_length=1)
        dim: Dim = -1

        positional = ("index",)

        @field_validator("index", mode="before")
        @classmethod
        def _one_index(cls, value: Any) -> Any:
            return (value,) if type(value) is int else value

        @model_validator(mode="after")
        def _said_once(self) -> Self:
            if (self.index is None) == (self.key is None):
                raise ValueError("give either index or key, not both")
            return self

    reads = ("data", "{key}")
    expected = "a tensor with that axis: a sample, or rows with request_size"
    kinds = "any"

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the options. Indices are put onto the device once."""
        super().build(options, context)
        from headrace_torch.requests.tensors import plain_numbers

        self.how_key, self._listed = options.key, plain_numbers
        self._indices: dict[Hashable, torch.Tensor] = {}

    def how(self, request: Request, rows: torch.Tensor) -> Hashable:
        """Return the indices, none of them negative."""
        options, length = self._options, rows.shape[self._dim]
        key, index = options.key, options.index
        if key is not None:
            expected = "a list or an array of whole numbers"
            value = read_key(request, key, expected)
            index = self._listed(value)
            if index is None or any(type(number) is not int for number in index):
                got = type(value).__name__ if index is None else repr(index)[:200]
                raise InputError("these are no indices", key=key, expected=expected, got=got)
        for number in index:
            if not -length <= number < length:
                raise InputError(
                    f"there is no index {number}",
                    key=key or "data",
                    expected=f"indices from {-length} to {length - 1}",
                    got=str(number),
                )
        return tuple(number % length for number in index)

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Take the values."""
        import torch

        index = self._indices.get(how) if self.how_key is None else None
        if index is None:
            index = torch.tensor(how, dtype=torch.int64, device=whole.device)
            if self.how_key is None:
                self._indices[how] = index
        return whole.index_select(self._dim, index)

    def close(self) -> None:
        """Drop the indices."""
        self._indices.clear()
        super().close()
