"""The place of an instance: its device, its stream, and the synchronisation at the end of its batches.

All elements of this plugin in an instance share one `Place` per device and thread. On CUDA the place makes the
instance's stream current in its thread, so that every call of torch there goes to that stream, and
it waits for the stream once at the end of each batch. Other plugins find the stream in
``context.store.instance`` under ``("cuda.stream", ordinal)``, a `headrace_tensors.DeviceStream`.
"""

from __future__ import annotations

import contextlib
from itertools import repeat
from operator import attrgetter, is_
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headrace_tensors import DeviceArray, marks_of
from headrace_torch.devices.memory import (
    LivePlaces,
    as_backend_error,
    give_back_memory,
    is_lost,
)
from headrace_torch.devices.names import check_device, wait_for_device
from headrace_torch.devices.own_stream import OwnStream
from headrace_torch.devices.threads import limit_torch_threads
from headrace_torch.devices.waiting import Waiting
from headrace_torch.requests.arrays import is_dense, stacked_arrays
from headrace_torch.requests.each import any_has, each_holds, of_each, put_in_each
from headrace_torch.requests.rows import Handed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_tensors import DeviceStream
    from headrace_tensors.entering import AnyMark
    from headrace_torch.requests.rows import Row

__all__ = ["INFERENCE", "Passing", "Place", "place_of", "places_of"]

INFERENCE: Any = getattr(torch._C, "_InferenceMode", torch.inference_mode)
"""torch's inference mode: the C++ class if torch has it, which avoids the Python calls of the wrapper."""

_PLACES = "headrace_torch.places"
_DTYPE = attrgetter("dtype")


class Place:
    """Device and stream of one instance, used only by the thread that made it.

    Attributes:
        device: The device of the instance.
        stream: The instance's stream on a CUDA device, else None.
        waits: The number of times that the thread has waited for the stream.
        used: Whether work was started for which the end of the batch has to wait.
        turns: The number of batches that have ended.
        made: The last tensor that an element of this instance made as the rows of one request. The next element need
            not check it, because it is dense, on this device, and was made on the instance's stream.
        marks: What callers have put on their streams for the requests of this batch.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self.device = device
        self.stream = stream
        self.waits = 0
        self.used = False
        self.turns = 0
        self.made: Any = None
        self._ordered = False
        self.marks: set[AnyMark] = set()
        self._kept: list[Any] = []
        self._with_axis: dict[int, Any] = {}
        self._others: dict[torch.device, Passing] = {}
        self._whole: torch.Tensor | None = None
        self._rows: Sequence[torch.Tensor | Row] = ()
        self._handed: Handed | None = None
        self._one_each: list[tuple[int, int, bool]] = []
        self._waiting: Waiting | None = None
        self._before: tuple[Any, torch.cuda.Stream] | None = None
        self._thread = get_ident()
        if stream is not None:
            self._watch(device)
            # It goes back to a device without using it, where nothing else does: that would take some 500 MB there.
            self._before = torch.cuda.device(device), torch.cuda.current_stream(device)
            self._before[0].__enter__()
            torch.cuda.set_stream(stream)
            LivePlaces.add(1)

    def _watch(self, device: torch.device) -> None:
        """Make the events for waiting, and get the device's default stream, on which callers may work."""
        self._waiting, self._default = Waiting(), torch.cuda.default_stream(device)

    # Order on the device.

    def use(self) -> None:
        """Record that work is being launched, so that the end of the batch waits for it."""
        self.used = True

    def take_in(self, tensor: torch.Tensor) -> None:
        """Order the current stream behind the work that produces a CUDA tensor of a caller.

        Work that the caller has started on the device's default stream comes first. For work on another
        stream see `wait_for_callers`. The allocator does not reuse the tensor's memory before the
        current stream has passed this point. For a tensor that this instance has made the call changes nothing.
        """
        self._order()
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def _order(self) -> None:
        """Order the current stream behind the device's default stream, once per batch."""
        if not self._ordered:
            self._ordered = True
            if not self._default.query():
                torch.cuda.current_stream(self.device).wait_stream(self._default)

    def wait_for_callers(
        self, batch: Sequence[Request], entered: Callable[[Request], tuple[AnyMark, ...] | None]
    ) -> None:
        """Let the current stream wait for the marks that were made as the requests of a batch came in.

        The values of such requests are kept alive to the end of the batch.

        Args:
            batch: Requests.
            entered: Returns what `headrace_tensors.enter` has returned for a request.
        """
        marks = marks_of(batch, entered)
        if not marks:
            return
        self.marks |= marks  # for the streams of other devices, see `beside`
        self.keep([list(request.values()) for request in batch])
        if self.stream is not None:
            handle = self.current_stream().cuda_stream
            for mark in marks:
                mark.hold_back(handle)

    def current_stream(self) -> torch.cuda.Stream:
        """Return the stream that is current: the instance's, or within a `StreamPool` one of the pool."""
        return torch.cuda.current_stream(self.device)

    def on_stream(self) -> AbstractContextManager[Any]:
        """Return a context manager that does nothing, because the stream is current already."""
        return contextlib.nullcontext()

    def beside(self, device: torch.device) -> Place:
        """Return the place for reading tensors on a device: this one, or for another device a `Passing`."""
        if device == self.device:
            return self
        if device not in self._others:
            self._others[device] = Passing(device)
        other = self._others[device]
        if other.stream is not None:
            for mark in self.marks:
                mark.hold_back(other.stream.cuda_stream)
        return other

    def keep(self, thing: Any) -> None:
        """Keep an object alive to the end of the batch: the stream may read memory that it owns."""
        self._kept.append(thing)

    def wait(self) -> None:
        """Wait for the stream, if anything was started since the last wait.

        Raises:
            InstanceLostError: The device can run nothing more in this process.
            RuntimeError: Work that was started before has failed.
        """
        if not self.used:
            return
        try:
            if self._waiting is not None:
                self._waiting.wait(torch.cuda.current_stream(self.device))
            else:
                wait_for_device(self.device)
        except RuntimeError as error:
            raise as_backend_error(error, self.device) from None
        finally:
            self.used = False
            self.waits += 1

    def end(self) -> None:
        """End the batch: wait for its work, and drop the objects that were kept for it."""
        try:
            self.wait()
        finally:
            for other in self._others.values():
                other.end()
            self._kept.clear()
            self.marks.clear()
            self._with_axis.clear()
            self._ordered = False
            self._let_go()
            self.turns += 1

    def _let_go(self) -> None:
        """Drop the tensors of the batch."""
        self._whole, self._rows, self.made = None, (), None
        if self._handed is not None:
            self._handed.whole = None

    def note_axis(self, request: Mapping[str, Any], result: Any) -> None:
        """Note that a result has a batch axis, if the request has no `request_size` that says so."""
        if "request_size" not in request:
            self._with_axis[id(result)] = result  # kept alive, so that no other tensor gets its id

    def is_sample(self, request: Mapping[str, Any], tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a sample without batch axis, where its rank does not show it."""
        return "request_size" not in request and id(tensor) not in self._with_axis

    # Rows of one tensor: an element gives them to the requests, and the next element takes the tensor as a whole.

    def give(
        self, batch: Sequence[Request], whole: torch.Tensor, *, hands_on: bool = False
    ) -> None:
        """Give each request one row of ``whole`` as its result. The next element finds ``whole`` by `carried`.

        Args:
            batch: As many requests as ``whole`` has rows.
            whole: ``[N, ...]``.
            hands_on: Give a `Row` in place of a tensor, then no request may have a `request_size`.
        """
        number = len(batch)
        if whole.shape[0] != number:
            raise ValueError(f"{whole.shape[0]} results of {number} samples")
        rows: Sequence[Any]
        if hands_on:
            handed = self._handed
            if handed is None or len(handed.rows) != number:
                handed = self._handed = Handed(number)
            handed.whole, rows = whole, handed.rows
        else:
            rows = whole.unbind(0)
        put_in_each(batch, "result", rows)
        self._whole, self._rows = whole, rows

    def one_each(self, number: int) -> Sequence[tuple[int, int, bool]]:
        """Return ``(begin, end, sample)`` for ``number`` samples of one row each, in order."""
        if len(self._one_each) != number:
            self._one_each = [(k, k + 1, True) for k in range(number)]
        return self._one_each

    def carried(self, batch: Sequence[Request]) -> torch.Tensor | None:
        """Return one tensor whose rows are the ``data`` of these requests, in order, without a copy; None if there is none.

        It is that of `give`, or the batch of another plugin's engine, see `headrace_tensors.DeviceArray.of_rows`.
        """
        if type(batch[0].get("data")) is DeviceArray:
            return self._of_engine(batch)
        rows, handed = self._rows, self._handed
        if len(rows) != len(batch):
            return None
        if handed is not None and rows is handed.rows:
            # Only requests without `request_size` got such rows, and since then only their sequence could touch them.
            # It drops failed requests and keeps the order of the others, so it is enough to compare the first and the
            # last.
            same = batch[0].get("data") is rows[0] and batch[-1].get("data") is rows[-1]
            return self._whole if same else None
        if not each_holds(batch, "data", rows) or any_has(batch, "request_size"):
            return None
        return self._whole

    def _of_engine(self, batch: Sequence[Request]) -> torch.Tensor | None:
        if any_has(batch, "request_size"):
            return None
        whole = DeviceArray.of_rows(of_each(batch, "data"))
        try:
            tensor = None if whole is None else torch.from_dlpack(whole)
        except Exception:  # noqa: BLE001 - torch may raise anything. Read one by one, each request gets its error
            return None
        if tensor is None or tensor.device != self.device:
            return None
        if self.stream is not None:
            self.take_in(tensor)
            self.keep(tensor)
        return tensor

    def stacked(self, batch: Sequence[Request]) -> torch.Tensor | None:
        """Stack samples of one shape and dtype on this device to one new tensor.

        The samples are tensors, or on the CPU numpy arrays, which are stacked without a tensor for each.

        Returns:
            ``[N, ...]``. None if there is only one request, or a request brings something else. The requests are then
            read one by one, which finds the error.
        """
        if len(batch) == 1 or any_has(batch, "request_size"):
            return None
        tensors = of_each(batch, "data")
        first: Any = tensors[0]
        if type(first) is np.ndarray and self.device.type == "cpu":
            return stacked_arrays(tensors)
        if type(first) is not torch.Tensor or first.device != self.device or first.is_quantized:
            return None
        dtype = first.dtype
        # `torch.stack` below refuses tensors of different shapes, layouts or devices.
        of_torch = all(map(is_, map(type, tensors), repeat(torch.Tensor)))
        if not (of_torch and all(map(is_, map(_DTYPE, tensors), repeat(dtype)))):
            return None
        if self._with_axis and any(id(tensor) in self._with_axis for tensor in tensors):
            return None
        if self.stream is not None:
            self._order()
            self._kept.append(tensors)  # alive until the stream has read them, at the batch's end
        try:
            whole = torch.stack(tensors)
        except RuntimeError:
            return None  # read one by one: that finds the error, or needs less memory at a time
        return whole if is_dense(whole) else None

    def rows(self, request: Mapping[str, Any]) -> torch.Tensor | None:
        """Return the `request_size` rows of a request, if they are a dense tensor on this device.

        Returns:
            ``[N, ...]``. None if the request brings something else. The request is then read on its own, which finds
            the error.
        """
        tensor: Any = request.get("data")
        if type(tensor) is not torch.Tensor or tensor.device != self.device:
            return None
        if not is_dense(tensor) or tensor.ndim == 0:
            return None
        if tensor.shape[0] != request.get("request_size"):
            return None
        if self.stream is not None and tensor is not self.made:
            self.take_in(tensor)
        return tensor

    def close(self) -> None:
        """Restore the thread's device and stream, and return the memory to the device.

        If another thread calls this, nothing is restored: the thread was a `BackgroundThread` of the instance, and
        has ended.
        """
        self._kept.clear()
        self._with_axis.clear()
        for other in self._others.values():
            other.close()
        self._others.clear()
        self._let_go()
        if self.stream is None:
            give_back_memory(self.device)
            return
        try:
            self.stream.synchronize()
            if self._before is not None and self._thread == get_ident():
                device, stream = self._before
                torch.cuda.set_stream(stream)
                device.__exit__(None, None, None)
        except RuntimeError as error:
            if not is_lost(error):
                raise
        finally:
            self._waiting = self._before = None
            give_back_memory(self.device, last=LivePlaces.add(-1) == 0)


class Passing(Place):
    """The place of an instance on a device from which it only reads: with a stream that is current in no thread."""

    def __init__(self, device: torch.device) -> None:
        self._owner = OwnStream(device.index) if device.type == "cuda" else None
        super().__init__(device, None)
        if self._owner is not None:
            self.stream = self._owner.stream
            self._watch(device)

    def _order(self) -> None:
        """Order the stream behind the device's default stream, for each array anew.

        DLPack orders the current stream behind the stream of the library that made the array. Here the current stream
        is the default stream.
        """
        self._ordered = False
        super()._order()

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Make the stream and its device current for a block, and use no other device afterwards."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            yield

    def close(self) -> None:
        """Release the stream."""
        if self._owner is not None:
            self._owner.close()


def place_of(context: InitContext, text: str) -> Place:
    """Return the place of the instance that is being built. The instance's first element of this plugin makes it.

    Args:
        context: The argument of the element's ``init``.
        text: The device.

    Raises:
        SetupError: This machine does not have the device.
    """
    limit_torch_threads(context.threads)
    store, device = context.store.instance, check_device(text)

    def make() -> Place:
        place = Place(device, _stream_of(context, device))
        places: list[Place] = store.get_or_create(_PLACES, list)
        places.append(place)
        context.batch.at_end(place.end)
        return place

    # An element in a `BackgroundThread` of the instance has a place of its own, because the stream is made current
    # per thread, and each thread has its own end of the batch.
    place: Place = store.get_or_create(("headrace_torch.place", str(device), get_ident()), make)
    return place


def places_of(context: InitContext) -> Callable[[], Sequence[Place]]:
    """Return a function that returns all places of the instance, also those that later elements make."""
    store = context.store.instance
    return lambda: store.get(_PLACES, ())


def _stream_of(context: InitContext, device: torch.device) -> torch.cuda.Stream | None:
    """Return the instance's stream on a CUDA device; the first plugin that asks for it makes it."""
    if device.type != "cuda":
        return None
    ordinal = device.index
    owner: DeviceStream = context.store.instance.get_or_create(
        ("cuda.stream", ordinal), lambda: OwnStream(ordinal)
    )
    own = getattr(owner, "stream", None)
    if isinstance(own, torch.cuda.Stream):
        return own
    stream: torch.cuda.Stream = torch.cuda.ExternalStream(owner.handle, device=device)
    return stream
