"""Base classes of this plugin's backends: on the instance's device and stream, over batches of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import headrace
from headrace.errors import InputError, InstanceLostError
from headrace_tensors import enter
from headrace_tensors.devices import Devices, check_devices, hands_on
from headrace_torch.requests.each import each_holds, of_each, put_in_each
from headrace_torch.requests.rows import Row

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import torch

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_torch.devices.place import Place

__all__ = ["Given", "OnPlace", "PerImage", "PerTensor", "TensorBackend", "read_key"]

_DEFAULT = "headrace_torch.default_device"


def read_key(request: Request, key: str, expected: str) -> Any:
    """Return the value of ``key`` in a request. For a `Row`, its tensor.

    Raises:
        InputError: The request has no such key. The error says what was ``expected``.
    """
    if key not in request:
        raise InputError(f"the request has no {key!r}", key=key, expected=expected, got="nothing")
    value = request[key]
    return value.tensor() if type(value) is Row else value


class OnPlace(headrace.Backend):
    """A backend on the instance's device and stream, in the instance's thread.

    Attributes:
        default_device: The device if the node's ``device`` is unset. None: the default of an earlier
            element of the instance that has one, else the CPU.
    """

    owns_thread = True
    rerun = True
    default_device: ClassVar[str | None] = None
    check_pipeline = staticmethod(check_devices)
    devices = staticmethod(hands_on)
    _place: Place
    _inference: Any = None

    @classmethod
    def auto_instances(cls, options: Any, device: str | None, threads: int) -> int | None:
        """Return one for each thread on the CPU, where torch computes without the interpreter lock, else one."""
        return threads if (device or cls.default_device or "cpu").startswith("cpu") else 1

    @classmethod
    def chosen_device(cls, context: InitContext) -> str:
        """Return the device of an instance, as text: that of the node, or see `default_device`."""
        store, text = context.store.instance, context.device or cls.default_device
        if context.device is None and text not in (None, "cpu"):
            store.get_or_create(_DEFAULT, lambda: text)
        return str(text or store.get(_DEFAULT, "cpu"))

    def init(self, options: Any, context: InitContext) -> None:
        """Import torch, and take the place of the instance."""
        from headrace_torch.devices.place import INFERENCE, place_of

        self._place = place_of(context, self.chosen_device(context))
        self._inference = INFERENCE
        self.build(options, context)

    def build(self, options: Any, context: InitContext) -> None:
        """Prepare for `forward`. Called in ``init`` once the place is there. The default does nothing."""

    def close(self) -> None:
        """Drop the references to torch; the place is closed with the instance."""
        self._inference = None


class TensorBackend(OnPlace, ABC):
    """A backend that computes with torch: without gradients, with errors that say what to do.

    Attributes:
        span_name: The name of its span on the device, if a probe asks for spans.
        takes_from: The devices of ``data`` beside its own. None: any.
        leaves_on: The device of ``result``. None: its own.
    """

    span_name: ClassVar[str] = "computation"
    takes_from: ClassVar[tuple[str, ...] | None] = ()
    leaves_on: ClassVar[str | None] = None
    reads: tuple[str, ...] | type = ("data",)
    enter = staticmethod(enter)
    _hands_on = (
        False  # whether only a backend of this plugin reads the results. Then they may be `Row`s
    )

    @classmethod
    def devices(cls, options: Any, context: InitContext) -> Devices:
        """Return the device of the instance, but for `takes_from` and `leaves_on`."""
        own = cls.chosen_device(context)
        takes = () if cls.takes_from is None else (own, *cls.takes_from)
        return Devices(takes, cls.leaves_on or own)

    def init(self, options: Any, context: InitContext) -> None:
        """Take the place of the instance; put `run` between two marks if a probe asks for spans of the device."""
        super().init(options, context)
        self._entered = context.request.entered
        behind = context.expression.followed_by
        self._hands_on = behind is not None and issubclass(behind, TensorBackend)
        if context.span is not None:
            from headrace_torch.devices.spans import spans_of

            spans = spans_of(context, self._place)
            if spans is not None:
                marked: Any = spans.around(self.run, context.span, self.span_name)
                self.run = marked  # type: ignore[method-assign]

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run a batch on the instance's device, without gradients."""
        self._place.used = True
        try:
            self._place.wait_for_callers(batch, self._entered)
            with self._inference(True):
                return self.run(batch)
        except Exception as error:
            failure = self.failure(error)
            if failure is error:
                raise
            raise failure from failure.__cause__

    @abstractmethod
    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Write ``result`` into each request of a batch."""

    def failure(self, error: Exception) -> Exception:
        """Return the error for a request; it says so if memory ran out, or if the device is lost."""
        from headrace_torch.devices.memory import as_backend_error

        return as_backend_error(error, self._place.device)


class Given(NamedTuple):
    """The input of one request.

    Attributes:
        tensor: The rows of the request, with the batch axis.
        sample: Whether the request brought one sample, without batch axis.
        how: The result of `PerTensor.how`. Requests are computed in one call only if theirs are equal.
        own: The tensor that was in the request, unchanged.
    """

    tensor: torch.Tensor
    sample: bool
    how: Hashable
    own: Any


def _with_own_shape(error: Exception, item: Given) -> Exception:
    """Make an InputError show the tensor of the request, without the batch axis that was added to a sample."""
    from headrace_torch.requests.tensors import described

    shown = isinstance(error, InputError) and error.got == described(item.tensor)
    if isinstance(error, InputError) and shown and item.sample:
        error.got = described(item.own)
    return error


class PerTensor(TensorBackend):
    """A backend that computes a function of tensors, in one call for all tensors of one shape.

    A subclass defines `compute`, and `check` and `how` if it needs them.

    If a batch has the shape and dtype of the one before, the results of `check` and `how` are used again
    (`how` only if it reads no key of the request).

    Attributes:
        expected: A text for errors that says what ``data`` must be.
        how_key: The key of a request that `how` reads. None: `how` depends on shape and dtype alone.
        writes_keys: Whether `done` writes further keys into the requests.
    """

    expected: ClassVar[str]
    how_key: str | None = None
    writes_keys: ClassVar[bool] = False
    _shape: Any = None
    _dtype: Any = None
    _how: Hashable = None

    @abstractmethod
    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Return the results of all rows of ``whole``, ``[N, ...]``: a new tensor, or ``whole`` itself."""

    def check(self, rows: torch.Tensor) -> None:
        """Refuse rows of a shape or dtype that `compute` cannot take. The default takes any.

        Raises:
            InputError: The rows differ from ``expected``.
        """

    def is_sample(self, request: Request, tensor: torch.Tensor) -> bool:
        """Return whether a request brings one sample; the default decides by its ``request_size``."""
        return self._place.is_sample(request, tensor)

    def _samples(self, batch: list[Request]) -> bool:
        """Return whether the batch may consist of samples that can be stacked, judged by its first request."""
        return len(batch) > 1

    def how(self, request: Request, rows: torch.Tensor) -> Hashable:
        """Return what else `compute` needs to know about a request. The default returns None."""
        return None

    def done(self, requests: Sequence[Request], how: Any) -> None:
        """Write further keys into requests with the same `how`. The default writes nothing."""

    def init(self, options: Any, context: InitContext) -> None:
        """Import the modules that read tensors."""
        from headrace_torch.devices.inputs import input_tensor
        from headrace_torch.requests import items

        self._items, self._input_tensor = items, input_tensor
        super().init(options, context)

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Compute the batch in one call if it can be one tensor, else request by request."""
        if len(batch) == 1 and self._rows_at_once(batch[0]):
            return None
        whole = self._place.carried(batch)
        if whole is None and self._samples(batch):
            whole = self._place.stacked(batch)
        if whole is not None and self._at_once(batch, whole):
            return None
        return self._one_by_one(batch)

    def _one_by_one(self, batch: list[Request]) -> list[Exception | None] | None:
        """Read each request on its own, and compute requests of one shape together."""
        outcomes: list[Exception | None] = [None] * len(batch)
        groups: dict[Hashable, list[int]] = {}
        items: dict[int, Given] = {}
        for index, request in enumerate(batch):
            try:
                read = items[index] = self.read(request)
            except InputError as error:
                outcomes[index] = error
                continue
            key = (read.how, read.tensor.shape[1:], read.tensor.dtype)
            groups.setdefault(key, []).append(index)
        for members in groups.values():
            self._group([batch[i] for i in members], [items[i] for i in members], members, outcomes)
        return outcomes if any(outcomes) else None

    def read(self, request: Request) -> Given:
        """Read and check the input of one request.

        Raises:
            InputError: The request lacks a key, or ``data`` is not what ``expected`` says.
        """
        value = read_key(request, "data", self.expected)
        own = self._input_tensor(value, self._place, "data", self.expected)
        sample = self.is_sample(request, own)
        rows = self._items.as_rows(own, request.get("request_size", 1), "data", sample=sample)
        item = Given(rows, sample, None, own)
        try:
            self.check(rows)
            return item._replace(how=self.how(request, rows))
        except InputError as error:
            raise _with_own_shape(error, item) from None

    def _at_once(self, batch: list[Request], whole: torch.Tensor) -> bool:
        """Compute samples that are the rows of one tensor, if `how` is the same for all.

        Returns:
            Whether the batch was computed. If not, the requests have to be read one by one.
        """
        hands_on, key = self._hands_on, self.how_key
        try:
            how = self._judged(batch[0], whole)
            if key is not None and not self._agreed(key, batch, whole, how):
                return False
            result = self.compute(whole, how)
        except InputError:
            return False  # read one by one, so that each request gets its own error
        first = batch[0]["data"]  # for a numpy array the result is a tensor, as in a batch of one
        if result is whole and (
            isinstance(first, type(whole)) or (hands_on and type(first) is Row)
        ):
            put_in_each(batch, "result", of_each(batch, "data"))
        else:
            self.give(batch, result, hands_on=hands_on)
        if self.writes_keys:
            self.done(batch, how)
        return True

    def _agreed(self, key: str, batch: list[Request], whole: torch.Tensor, how: Any) -> bool:
        """Return whether `how` is the same for all requests."""
        if each_holds(batch, key, repeat(batch[0].get(key))):
            return True
        return all(self.how(request, whole) == how for request in batch)

    def _judged(self, request: Request, whole: torch.Tensor) -> Any:
        """Check the rows and return the argument ``how`` of `compute`. Both are kept for the next batch.

        Raises:
            InputError: `compute` cannot take the rows, or the key that `how` reads is wrong.
        """
        if whole.shape != self._shape or whole.dtype is not self._dtype:
            self.check(whole)
            if self.how_key is None:
                self._how = self.how(request, whole)
            self._shape, self._dtype = whole.shape, whole.dtype
        return self._how if self.how_key is None else self.how(request, whole)

    def _rows_at_once(self, request: Request) -> bool:
        """Compute the rows of a single request, such as ``CatSplit`` makes. Return False if this failed."""
        size = request.get("request_size")
        if size is None:
            return False
        place = self._place
        rows: Any = request.get("data")
        if rows is None or rows is not place.made or rows.shape[0] != size:
            rows = place.rows(request)
            if rows is None:
                return False
        try:
            how = self._judged(request, rows)
            result = self.compute(rows, how)
        except InputError:
            return False  # read on its own, so that the request gets its error
        request["result"] = self.all_rows(result)
        place.made = result
        if self.writes_keys:
            self.done([request], how)
        return True

    def all_rows(self, result: Any) -> Any:
        """Return the ``result`` of the request that brought all rows."""
        return result

    def give(self, batch: list[Request], result: Any, *, hands_on: bool = False) -> None:
        """Write each sample's row of the result into its request: a `Row` if the next backend is of this plugin."""
        self._place.give(batch, result, hands_on=hands_on)

    def rows_of(self, result: Any, start: int, stop: int, *, sample: bool) -> Any:
        """Return the rows from ``start`` to before ``stop``; for a sample its row, without the batch axis."""
        return result[start] if sample else result[start:stop]

    def _group(
        self,
        requests: Sequence[Request],
        items: Sequence[Given],
        members: Sequence[int],
        outcomes: list[Exception | None],
    ) -> None:
        """Compute requests of one shape together, and write each its result or its error."""
        how = items[0].how
        try:
            whole = self._items.joined([item.tensor for item in items])
            result = self.compute(whole, how)
        except Exception as error:  # the outcome of these items
            if isinstance(error, InputError) and len(members) > 1:
                # The error describes the rows of all requests. Run each request alone, so that its error describes
                # its own.
                for request, item, index in zip(requests, items, members, strict=True):
                    self._group([request], [item], [index], outcomes)
                return
            failure = self.failure(error)
            if isinstance(failure, InstanceLostError):
                raise failure from error
            for index in members:
                outcomes[index] = _with_own_shape(failure, items[0])
            return
        if result is whole:
            for request, item in zip(requests, items, strict=True):
                request["result"] = item.own
        elif all(item.sample for item in items):
            self.give(list(requests), result)
        else:
            start = 0
            for request, item in zip(requests, items, strict=True):
                stop = start + len(item.tensor)
                request["result"] = self.rows_of(result, start, stop, sample=item.sample)
                start = stop
        self._finish(requests, items, how)

    def _finish(self, requests: Sequence[Request], items: Sequence[Given], how: Any) -> None:
        """Note which results have a batch axis, and call `done`."""
        for request, item in zip(requests, items, strict=True):
            if not item.sample:
                self._place.note_axis(request, request["result"])
        if self.writes_keys:
            self.done(requests, how)


class PerImage(PerTensor):
    """A backend that computes a function of images; the rank distinguishes a sample from rows."""

    expected = "an image: uint8 or floating [C, H, W] with C 1, 3 or 4, or [N, C, H, W] with request_size N"

    def init(self, options: Any, context: InitContext) -> None:
        """Import the check of images."""
        super().init(options, context)
        from headrace_torch.images.transforms import check_image

        self._check_image = check_image

    def check(self, rows: torch.Tensor) -> None:
        """Refuse tensors that are no images."""
        self._check_image(rows)

    def _samples(self, batch: list[Request]) -> bool:
        """Return whether the images may be stacked: only if the first one is ``[C, H, W]``."""
        return len(batch) > 1 and getattr(batch[0].get("data"), "ndim", 0) == 3

    def is_sample(self, request: Request, tensor: torch.Tensor) -> bool:
        """Treat a tensor of up to three axes as one image. `check` refuses those with fewer than three.

        One row of ``[1, C, H, W]`` needs no `request_size`.
        """
        return bool(tensor.ndim < 4)
