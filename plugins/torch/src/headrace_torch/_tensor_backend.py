"""What the backends of this plugin share: the instance's place, and batches of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import headrace
from headrace.errors import InputError, InstanceLostError
from headrace_torch._each import each_holds, of_each, put_in_each
from headrace_torch.rows import Row

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import torch

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_torch.place import Place

__all__ = ["Given", "OnPlace", "PerImage", "PerTensor", "TensorBackend", "read_key"]


def read_key(request: Request, key: str, expected: str) -> Any:
    """Give what ``request`` holds under ``key``, a `Row` as its tensor, or say what it should hold.

    Raises:
        InputError: There is no such key.
    """
    if key not in request:
        raise InputError(f"the request has no {key!r}", key=key, expected=expected, got="nothing")
    value = request[key]
    return value.tensor() if type(value) is Row else value


class OnPlace(headrace.Backend):
    """A backend on the instance's device and stream, in the instance's thread.

    Attributes:
        default_device: Where it computes when the node's ``device`` is unset; None: where an
            element before it in the instance does that has such a default, else on the CPU.
    """

    owns_thread = True
    rerun = True
    default_device: ClassVar[str | None] = None
    _place: Place
    _inference: Any = None

    def init(self, options: Any, context: InitContext) -> None:
        """Import torch, and take the place of the instance."""
        from headrace_torch.place import INFERENCE, place_of

        self._place = place_of(context, self.default_device)
        self._inference = INFERENCE
        self.build(options, context)

    def build(self, options: Any, context: InitContext) -> None:
        """Prepare what `forward` needs. The default does nothing."""

    def close(self) -> None:
        """Drop what was built; the place is closed with the instance."""
        self._inference = None


class TensorBackend(OnPlace, ABC):
    """A backend that computes with torch: without gradients, with errors that say what to do.

    Attributes:
        span_name: What its time on the device is called where a probe listens.
    """

    span_name: ClassVar[str] = "computation"
    _hands_on = (
        False  # whether its results are given to a word of this plugin alone: it may give rows
    )

    def init(self, options: Any, context: InitContext) -> None:
        """Take the place of the instance; let its time on the device be reported if somebody listens."""
        super().init(options, context)
        behind = context.followed_by
        self._hands_on = behind is not None and issubclass(behind, TensorBackend)
        if context.span is not None:
            from headrace_torch.device_spans import spans_of

            spans = spans_of(context, self._place)
            if spans is not None:
                marked: Any = spans.around(self.run, context.span, self.span_name)
                self.run = marked  # type: ignore[method-assign]

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run a batch on the instance's device, without gradients."""
        self._place.used = True
        try:
            with self._inference(True):
                return self.run(batch)
        except Exception as error:
            found = self.failure(error)
            if found is error:
                raise
            raise found from found.__cause__

    @abstractmethod
    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Write ``result`` into each request of a batch."""

    def failure(self, error: Exception) -> Exception:
        """Give the error that a request gets: memory that ran out and a lost device say so."""
        from headrace_torch.memory import as_backend_error

        return as_backend_error(error, self._place.device)


class Given(NamedTuple):
    """What one request brings.

    Attributes:
        tensor: Its rows, with the batch axis.
        sample: Whether it brought one sample, without batch axis.
        how: What must be equal in all that are worked on in one call.
        own: The tensor as it came.
    """

    tensor: torch.Tensor
    sample: bool
    how: Hashable
    own: Any


def _as_it_came(error: Exception, given: Given) -> Exception:
    """Give an InputError with what the request brought: a sample is shown without the batch axis."""
    from headrace_torch.tensors import described

    shown = isinstance(error, InputError) and error.got == described(given.tensor)
    if isinstance(error, InputError) and shown and given.sample:
        error.got = described(given.own)
    return error


class PerTensor(TensorBackend):
    """A backend that is a function of tensors: those of one shape are worked on in one call.

    A subclass writes `compute`, and what it needs of `check` and `how`.

    What a batch of the same shape and dtype as the one before needs has been checked and found out
    then: `check`, and where no key is read `how`, are asked again when one of the two changes.

    Attributes:
        expected: What ``data`` must be, in words, for the errors.
        told_by: The key of a request that `how` reads; None: it depends on shape and dtype alone.
        tells: Whether `done` writes something.
    """

    expected: ClassVar[str]
    told_by: str | None = None
    tells: ClassVar[bool] = False
    _shape: Any = None
    _dtype: Any = None
    _how: Hashable = None

    @abstractmethod
    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Give the results of all rows of ``whole``, ``[N, ...]``, in new memory or as it is."""

    def check(self, rows: torch.Tensor) -> None:
        """Refuse rows whose shape or dtype `compute` cannot take. The default takes any.

        Raises:
            InputError: They are not what ``expected`` says.
        """

    def is_sample(self, request: Request, tensor: torch.Tensor) -> bool:
        """Tell whether a request brings one sample; the default goes by its ``request_size``."""
        return self._place.is_sample(request, tensor)

    def _samples(self, batch: list[Request]) -> bool:
        """Tell whether a batch may be samples to stack, by its first request."""
        return len(batch) > 1

    def how(self, request: Request, rows: torch.Tensor) -> Hashable:
        """Read what else `compute` needs to know of a request. The default reads nothing."""
        return None

    def done(self, requests: Sequence[Request], how: Any) -> None:
        """Write what else requests of one `how` get. The default writes nothing."""

    def init(self, options: Any, context: InitContext) -> None:
        """Import what reads tensors."""
        from headrace_torch import items, tensors

        self._items, self._tensors = items, tensors
        super().init(options, context)

    def run(self, batch: list[Request]) -> list[Exception | None] | None:
        """Compute; a request that is wrong fails alone."""
        if len(batch) == 1 and self._rows_at_once(batch[0]):
            return None
        whole = self._place.carried(batch)
        if whole is None and self._samples(batch):
            whole = self._place.stacked(batch)
        if whole is not None and self._at_once(batch, whole):
            return None
        return self._one_by_one(batch)

    def _one_by_one(self, batch: list[Request]) -> list[Exception | None] | None:
        """Read each request on its own, and compute those of one shape together."""
        outcomes: list[Exception | None] = [None] * len(batch)
        groups: dict[Hashable, list[int]] = {}
        given: dict[int, Given] = {}
        for index, request in enumerate(batch):
            try:
                one = given[index] = self.read(request)
            except InputError as error:
                outcomes[index] = error
                continue
            key = (one.how, one.tensor.shape[1:], one.tensor.dtype)
            groups.setdefault(key, []).append(index)
        for members in groups.values():
            self._group([batch[i] for i in members], [given[i] for i in members], members, outcomes)
        return outcomes if any(outcomes) else None

    def read(self, request: Request) -> Given:
        """Read and check what one request brings.

        Raises:
            InputError: It lacks a key, or holds something else.
        """
        value = read_key(request, "data", self.expected)
        own = self._tensors.input_tensor(value, self._place, "data", self.expected)
        sample = self.is_sample(request, own)
        rows = self._items.as_rows(own, request.get("request_size", 1), "data", sample=sample)
        given = Given(rows, sample, None, own)
        try:
            self.check(rows)
            return given._replace(how=self.how(request, rows))
        except InputError as error:
            raise _as_it_came(error, given) from None

    def _at_once(self, batch: list[Request], whole: torch.Tensor) -> bool:
        """Compute samples that come as the rows of one tensor, if all want the same."""
        hands_on, key = self._hands_on, self.told_by
        try:
            how = self._judged(batch[0], whole)
            if key is not None and not self._agreed(key, batch, whole, how):
                return False
            result = self.compute(whole, how)
        except InputError:
            return False  # one by one, so that each says what is wrong with it
        if result is whole and (hands_on or type(batch[0]["data"]) is not Row):
            put_in_each(batch, "result", of_each(batch, "data"))
        else:
            self.give(batch, result, hands_on=hands_on)
        if self.tells:
            self.done(batch, how)
        return True

    def _agreed(self, key: str, batch: list[Request], whole: torch.Tensor, how: Any) -> bool:
        """Tell whether the key that `how` reads says the same in all requests as in the first."""
        if each_holds(batch, key, repeat(batch[0].get(key))):
            return True
        return all(self.how(request, whole) == how for request in batch)

    def _judged(self, request: Request, whole: torch.Tensor) -> Any:
        """Check rows, and give what else `compute` needs to know.

        Raises:
            InputError: `compute` cannot take them, or the request says something else.
        """
        if whole.shape != self._shape or whole.dtype is not self._dtype:
            self.check(whole)
            if self.told_by is None:
                self._how = self.how(request, whole)
            self._shape, self._dtype = whole.shape, whole.dtype
        return self._how if self.told_by is None else self.how(request, whole)

    def _rows_at_once(self, request: Request) -> bool:
        """Compute the rows of one request, as ``CatSplit`` gathers them, if nothing is wrong."""
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
            return False  # read on its own, so that it says what is wrong
        request["result"] = self.all_rows(result)
        place.made = result
        if self.tells:
            self.done([request], how)
        return True

    def all_rows(self, result: Any) -> Any:
        """Give what one request gets that has brought all rows of the result."""
        return result

    def give(self, batch: list[Request], result: Any, *, hands_on: bool = False) -> None:
        """Give each of these samples its row of the result: a `Row` if the next word takes them."""
        self._place.give(batch, result, hands_on=hands_on)

    def rows_of(self, result: Any, start: int, stop: int, *, sample: bool) -> Any:
        """Give some rows of the result; of a sample the only one, without the batch axis."""
        return result[start] if sample else result[start:stop]

    def _group(
        self,
        requests: Sequence[Request],
        given: Sequence[Given],
        members: Sequence[int],
        outcomes: list[Exception | None],
    ) -> None:
        """Compute requests of one shape together, and give each its own."""
        how = given[0].how
        try:
            whole = self._items.joined([one.tensor for one in given])
            result = self.compute(whole, how)
        except Exception as error:  # the outcome of these items
            found = self.failure(error)
            if isinstance(found, InstanceLostError):
                raise found from error
            for index in members:
                outcomes[index] = _as_it_came(found, given[0])
            return
        if result is whole:
            for request, one in zip(requests, given, strict=True):
                request["result"] = one.own
        elif all(one.sample for one in given):
            self.give(list(requests), result)
        else:
            start = 0
            for request, one in zip(requests, given, strict=True):
                stop = start + len(one.tensor)
                request["result"] = self.rows_of(result, start, stop, sample=one.sample)
                start = stop
        self._finish(requests, given, how)

    def _finish(self, requests: Sequence[Request], given: Sequence[Given], how: Any) -> None:
        """Note which results have their batch axis, and write what else these requests get."""
        for request, one in zip(requests, given, strict=True):
            if not one.sample:
                self._place.note_axis(request, request["result"])
        if self.tells:
            self.done(requests, how)


class PerImage(PerTensor):
    """A function of images; their rank tells a sample from rows."""

    expected = "an image: uint8 or floating [C, H, W] with C 1, 3 or 4, or [N, C, H, W] with request_size N"

    def init(self, options: Any, context: InitContext) -> None:
        """Import what knows an image."""
        super().init(options, context)
        from headrace_torch.images import check_image

        self._check_image = check_image

    def check(self, rows: torch.Tensor) -> None:
        """Refuse what is no image."""
        self._check_image(rows)

    def _samples(self, batch: list[Request]) -> bool:
        """Images are to be stacked where the first one is ``[C, H, W]``."""
        return len(batch) > 1 and getattr(batch[0].get("data"), "ndim", 0) == 3

    def is_sample(self, request: Request, tensor: torch.Tensor) -> bool:
        """Take ``[C, H, W]`` as one image; one row of ``[1, C, H, W]`` needs no `request_size`."""
        return bool(tensor.ndim == 3)
