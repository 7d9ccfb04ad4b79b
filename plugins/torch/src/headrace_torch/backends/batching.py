"""`CatTensor`, `ContiguousTensor`, `SplitTensor`: the parts of ``CatSplit``."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, TypedDict

from typing_extensions import NotRequired  # noqa: TC002 - read from the annotations of `_Whole`

from headrace.errors import InputError
from headrace_torch.backends.base import TensorBackend, read_key
from headrace_torch.requests.each import any_has, each_holds, put_in_each

if TYPE_CHECKING:
    import torch

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["CatTensor", "ContiguousTensor", "SplitTensor"]

_ROWS = "a tensor: a sample, or rows with request_size"
_ONE_SHAPE = "ResizeTensor or PadTensor before CatTensor makes images of one shape."


class CatTensor(TensorBackend):
    """Put the rows of all requests of a batch one below the other: the first part of ``CatSplit``.

    Each request gets the same whole tensor, because ``CatSplit`` goes on with the result of the first request. Each
    also gets the position of its own rows in it, for `SplitTensor`.

    Reads:
        data: A tensor of any dtype and any shape: a sample, or with ``request_size = N`` N rows.
            All of a batch have one dtype and, but for the rows, one shape.

    Writes:
        result: ``[N of all, ...]`` of that dtype, the same tensor for all requests of the batch.
        cat_rows: ``(begin, end, sample)``: the request's rows, and whether it brought one sample.

    Batch:
        1 or more, or 1 where the node's ``max`` is 1. A request that does not fit the first one fails
        alone.

    Raises:
        InputError: ``data`` is missing, no tensor, on another device, or does not fit the first request's.

    Source:
        Own.
    """

    writes = ("result", "cat_rows")

    def build(self, options: Any, context: InitContext) -> None:
        """Take one request at a time if the node's ``max`` is 1."""
        if context.batch.max == 1:
            self.max = 1

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Concatenate the rows."""
        whole = self._place.carried(batch)
        if whole is None:
            whole = self._place.stacked(batch)
        if whole is None:
            return self._one_by_one(batch)
        self._place.made = whole  # samples of one shape
        put_in_each(batch, "result", repeat(whole))
        put_in_each(batch, "cat_rows", self._place.one_each(len(batch)))
        return None

    def _one_by_one(self, batch: list[Request]) -> list[Exception | None] | None:
        from headrace_tensors import Item
        from headrace_torch.devices.inputs import input_tensor
        from headrace_torch.requests.items import as_rows, joined, refuse_ragged

        outcomes: list[Exception | None] = [None] * len(batch)
        items: dict[int, Item] = {}
        first: Item | None = None
        for index, request in enumerate(batch):
            try:
                tensor = input_tensor(read_key(request, "data", _ROWS), self._place, "data", _ROWS)
                rows = request.get("request_size", 1)
                sample = self._place.is_sample(request, tensor)
                item = Item({"data": as_rows(tensor, rows, "data", sample=sample)}, rows, sample)
                first = first or item
                unlike = refuse_ragged(first, item, {"data": "data"})
                if unlike is not None:
                    unlike.hint = _ONE_SHAPE
                    raise unlike
                items[index] = item
            except InputError as error:
                outcomes[index] = error
        if not items:
            return outcomes
        whole = joined([item.tensors["data"] for item in items.values()])
        begin = 0
        for index, item in items.items():
            end = begin + item.rows
            batch[index]["result"] = whole
            batch[index]["cat_rows"] = (begin, end, item.sample)
            begin = end
        return outcomes if any(outcomes) else None


class ContiguousTensor(TensorBackend):
    """Give a tensor with its memory in the order of its axes (contiguous).

    Reads:
        data: A tensor of any dtype and any shape.

    Writes:
        result: A contiguous tensor of the same values, dtype and shape: ``data`` itself if it is contiguous,
            else new memory.

    Batch:
        1 or more. A bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no tensor, or on another device.

    Source:
        torch's ``contiguous``.
    """

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Copy the tensors that are not contiguous."""
        from headrace_torch.devices.inputs import input_tensor
        from headrace_torch.requests.tensors import ARRAY

        outcomes: list[Exception | None] = [None] * len(batch)
        for index, request in enumerate(batch):
            try:
                value = read_key(request, "data", ARRAY)
                tensor = input_tensor(value, self._place)
                request["result"] = tensor.contiguous()
                if not self._place.is_sample(request, tensor):
                    self._place.note_axis(request, request["result"])
            except InputError as error:
                outcomes[index] = error
        return outcomes if any(outcomes) else None


class _Whole(TypedDict):
    """The keys that `SplitTensor` reads."""

    data: Any
    cat_rows: NotRequired[tuple[int, int, bool]]


class SplitTensor(TensorBackend):
    """Give each request its rows of a whole tensor: the last part of ``CatSplit``.

    `CatTensor` has written ``cat_rows``, the position of each request's rows. Without that key the rows follow each
    other in the order of the batch: ``request_size`` rows for each request, one sample for a request without it.

    Reads:
        data: The whole: a tensor of any dtype ``[N, ...]``, any shape, or a table of them by name.
        cat_rows: ``(begin, end, sample)``, as `CatTensor` writes it; it may be missing.

    Writes:
        result: The request's rows, of the same dtype: ``[rows, ...]``, or without the first axis if the request
            brought one sample; for a table a table. Views of ``data``.

    Batch:
        1 or more. A bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no tensor, on another device, or has too few rows (without ``cat_rows`` in
            any request: another number of rows than the requests). ``cat_rows`` has another form.

    Source:
        Own.
    """

    reads = _Whole

    def build(self, options: Any, context: InitContext) -> None:
        """Look up the classes of torch once, for the checks of each batch."""
        import torch

        self._tensor, self._dense = torch.Tensor, torch.strided

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Take the rows."""
        if self._samples_at_once(batch):
            return None
        outcomes: list[Exception | None] = [None] * len(batch)
        begin = 0
        total: int | None = None  # the rows that `data` must have, if no request has `cat_rows`
        if not any_has(batch, "cat_rows"):
            total = sum(request.get("request_size", 1) for request in batch)
        for index, request in enumerate(batch):
            end = begin + request.get("request_size", 1)
            try:
                value = read_key(request, "data", "a tensor [N, ...], or a table of them")
                place = (begin, end, "request_size" not in request)
                if "cat_rows" in request:
                    place = self._noted(request["cat_rows"])
                begin = place[1]
                if isinstance(value, dict) and value:
                    parts = {name: self._rows(part, place, total) for name, part in value.items()}
                    request["result"] = parts
                else:
                    request["result"] = self._rows(value, place, total)
                    if not place[2]:
                        self._place.note_axis(request, request["result"])
            except InputError as error:
                outcomes[index] = error
                begin = end
        return outcomes if any(outcomes) else None

    def _samples_at_once(self, batch: list[Request]) -> bool:
        """Give each request its row if `CatTensor` has noted one sample for each; else return False."""
        whole: Any = batch[0].get("data")
        if whole is None or whole is not self._place.made:
            if type(whole) is not self._tensor or whole.device != self._place.device:
                return False
            if whole.layout is not self._dense or whole.ndim == 0:
                return False
            if self._place.stream is not None:
                self._place.take_in(whole)
        if whole.shape[0] != len(batch):
            return False
        if not each_holds(batch, "cat_rows", self._place.one_each(len(batch))):
            return False
        if not each_holds(batch, "data", repeat(whole)):
            return False
        self._place.give(batch, whole)
        return True

    def _noted(self, value: Any) -> tuple[int, int, bool]:
        right = isinstance(value, tuple) and len(value) == 3
        right = right and all(isinstance(number, int) for number in value)
        if not right or not 0 <= value[0] < value[1] or (value[2] and value[1] - value[0] > 1):
            raise InputError(
                "these are no rows",
                key="cat_rows",
                expected="(begin, end, sample), as CatTensor writes it",
                got=type(value).__name__,
            )
        begin, end, sample = value
        return begin, end, sample

    def _rows(self, value: Any, place: tuple[int, int, bool], total: int | None) -> torch.Tensor:
        from headrace_torch.devices.inputs import input_tensor
        from headrace_torch.requests.tensors import refused

        begin, end, sample = place
        whole = input_tensor(value, self._place, "data", "a tensor [N, ...]")
        if whole.ndim == 0 or whole.shape[0] < end:
            raise refused("the whole has too few rows", f"at least {end} rows", whole)
        if total is not None and whole.shape[0] != total:
            raise refused("the whole has rows of no request", f"{total} rows", whole)
        return whole[begin] if sample else whole[begin:end]
