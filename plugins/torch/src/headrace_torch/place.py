"""Where an instance computes: its device, its stream, and the end of its batch.

One `Place` per instance and device holds for all elements of this plugin. On CUDA it makes the
instance's stream current in the instance's thread, so that every call of torch there goes to it, and
at the end of each batch it waits for that stream once. Other plugins find the stream in
``context.instance`` under ``("cuda.stream", ordinal)``: an object with ``handle`` and ``close()``.
"""

from __future__ import annotations

import contextlib
from itertools import repeat
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headrace_torch._each import any_has, each_holds, of_each, put_in_each
from headrace_torch.arrays import stacked_arrays
from headrace_torch.devices import check_device, wait_for_device
from headrace_torch.memory import (
    LivePlaces,
    as_backend_error,
    give_back_memory,
    is_lost,
)
from headrace_torch.own_stream import OwnStream
from headrace_torch.rows import Handed
from headrace_torch.threads import limit_torch_threads
from headrace_torch.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from headrace import InitContext
    from headrace.keys import Request
    from headrace_torch.rows import Row

__all__ = ["INFERENCE", "Passing", "Place", "place_of", "places_of"]

INFERENCE: Any = getattr(torch._C, "_InferenceMode", torch.inference_mode)
"""What `torch.inference_mode` enters and leaves, where torch has it without the calls of Python around."""

_DEFAULT = "headrace_torch.default_device"
_PLACES = "headrace_torch.places"
_DTYPE = attrgetter("dtype")


class Place:
    """Device and stream of one instance, used by its thread alone.

    Attributes:
        device: Where the instance computes.
        stream: Its stream on a CUDA device, else None.
        waits: How often the thread has waited for the stream.
        used: Whether work was started that the end of the batch has to wait for.
        turns: How many batches have ended.
        made: The tensor that an element of this instance gave last as the rows of one request: it is
            dense, on this device, and ordered.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self.device = device
        self.stream = stream
        self.waits = 0
        self.used = False
        self.turns = 0
        self.made: Any = None
        self._ordered = False
        self._kept: list[Any] = []
        self._with_axis: dict[int, Any] = {}
        self._others: dict[torch.device, Passing] = {}
        self._whole: torch.Tensor | None = None
        self._rows: Sequence[torch.Tensor | Row] = ()
        self._handed: Handed | None = None
        self._one_each: list[tuple[int, int, bool]] = []
        self._waiting: Waiting | None = None
        self._before: tuple[int, torch.cuda.Stream] | None = None
        if stream is not None:
            self._watch(device)
            self._before = torch.cuda.current_device(), torch.cuda.current_stream(device)
            torch.cuda.set_device(device)
            torch.cuda.set_stream(stream)
            LivePlaces.add(1)

    def _watch(self, device: torch.device) -> None:
        """Make what waits for the stream, and find the one that others work on."""
        self._waiting, self._default = Waiting(), torch.cuda.default_stream(device)

    # Order on the device.

    def use(self) -> None:
        """Note that work is being started, which the end of the batch waits for."""
        self.used = True

    def take_in(self, tensor: torch.Tensor) -> None:
        """Order the current stream behind what made a CUDA tensor that comes from elsewhere.

        Its memory is not used again before the current stream has passed this point. What the
        caller has started on the device's default stream comes first; what it has started on
        another stream, it must have waited for. A tensor that this instance made costs a call that
        does nothing.
        """
        self._order()
        tensor.record_stream(torch.cuda.current_stream(self.device))

    def _order(self) -> None:
        """Order the current stream behind the device's default one, once in a batch."""
        if not self._ordered:
            self._ordered = True
            if not self._default.query():
                torch.cuda.current_stream(self.device).wait_stream(self._default)

    def on_stream(self) -> AbstractContextManager[Any]:
        """Give what makes the stream current: nothing is to be done in the instance's thread."""
        return contextlib.nullcontext()

    def beside(self, device: torch.device) -> Place:
        """Give the place for reading on a device: this one, or one with a stream of its own."""
        if device == self.device:
            return self
        if device not in self._others:
            self._others[device] = Passing(device)
        return self._others[device]

    def keep(self, thing: Any) -> None:
        """Keep something alive until the stream has passed: memory that is not torch's."""
        self._kept.append(thing)

    def wait(self) -> None:
        """Wait for the stream, if anything was started since the last wait.

        Raises:
            InstanceLostError: The device can run nothing more.
            RuntimeError: Something that was started before has failed.
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
        """End the batch: wait, and let go of what was kept for it."""
        try:
            self.wait()
        finally:
            for other in self._others.values():
                other.end()
            self._kept.clear()
            self._with_axis.clear()
            self._ordered = False
            self._let_go()
            self.turns += 1

    def _let_go(self) -> None:
        """Let go of the tensors of the batch."""
        self._whole, self._rows, self.made = None, (), None
        if self._handed is not None:
            self._handed.whole = None

    def note_axis(self, request: Mapping[str, Any], result: Any) -> None:
        """Note that what a request is given has its batch axis, where no `request_size` says so."""
        if "request_size" not in request:
            self._with_axis[id(result)] = result  # alive as long as its id is looked up

    def is_sample(self, request: Mapping[str, Any], tensor: torch.Tensor) -> bool:
        """Tell whether a tensor, whose rank says nothing, is a sample without batch axis."""
        return "request_size" not in request and id(tensor) not in self._with_axis

    # Rows that the next element takes as the whole they were.

    def give(
        self, batch: Sequence[Request], whole: torch.Tensor, *, hands_on: bool = False
    ) -> None:
        """Give each request one row of ``whole``, which the next element may then take at once.

        Args:
            batch: As many requests as ``whole`` has rows.
            whole: ``[N, ...]``.
            hands_on: Give a `Row` in place of a tensor; none of the requests has a `request_size`.
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
        """Give ``(begin, end, sample)`` for so many samples, one row each, in order."""
        if len(self._one_each) != number:
            self._one_each = [(k, k + 1, True) for k in range(number)]
        return self._one_each

    def carried(self, batch: Sequence[Request]) -> torch.Tensor | None:
        """Give the tensor whose rows are the ``data`` of these samples in order, if there is one."""
        rows, handed = self._rows, self._handed
        if len(rows) != len(batch) or not each_holds(batch, "data", rows):
            return None
        if handed is not None and rows is handed.rows:
            return self._whole  # whoever handed them on has looked
        return None if any_has(batch, "request_size") else self._whole

    def stacked(self, batch: Sequence[Request]) -> torch.Tensor | None:
        """Give samples of one shape and dtype on this device as one new tensor.

        They are tensors, or on the CPU numpy arrays, none of which becomes a tensor of its own.

        Returns:
            ``[N, ...]``; None where there is one request, or one brings something else: read one by
            one, it says what is wrong.
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
        # torch itself refuses to stack other shapes, layouts and devices.
        of_torch = all(map(is_, map(type, tensors), repeat(torch.Tensor)))
        if not (of_torch and all(map(is_, map(_DTYPE, tensors), repeat(dtype)))):
            return None
        if self._with_axis and any(id(one) in self._with_axis for one in tensors):
            return None
        if self.stream is not None:
            self._order()
            self._kept.append(tensors)  # to the end of the batch, which waits for the stream
        try:
            whole = torch.stack(tensors)
        except RuntimeError:
            return None  # one by one: it says what is wrong, or there is less to hold
        return whole if whole.layout is torch.strided else None

    def rows(self, request: Mapping[str, Any]) -> torch.Tensor | None:
        """Give the `request_size` rows of a request, if they are a dense tensor on this device.

        Returns:
            ``[N, ...]``; None where it brings something else: read on its own, it says what is wrong.
        """
        tensor: Any = request.get("data")
        if type(tensor) is not torch.Tensor or tensor.device != self.device:
            return None
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.ndim == 0:
            return None
        if tensor.shape[0] != request.get("request_size"):
            return None
        if self.stream is not None and tensor is not self.made:
            self.take_in(tensor)
        return tensor

    def close(self) -> None:
        """Give the thread its device and stream back, and the memory to the device."""
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
            if self._before is not None:
                device, stream = self._before
                torch.cuda.set_stream(stream)
                torch.cuda.set_device(device)
        except RuntimeError as error:
            if not is_lost(error):
                raise
        finally:
            self._waiting = self._before = None
            give_back_memory(self.device, last=LivePlaces.add(-1) == 0)


class Passing(Place):
    """A device on which an instance only reads: a stream of its own, current in no thread."""

    def __init__(self, device: torch.device) -> None:
        self._owner = OwnStream(device.index) if device.type == "cuda" else None
        super().__init__(device, None)
        if self._owner is not None:
            self.stream = self._owner.stream
            self._watch(device)

    def on_stream(self) -> AbstractContextManager[Any]:
        """Give what makes the stream, and its device, current for a while."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def close(self) -> None:
        """Give up the stream."""
        if self._owner is not None:
            self._owner.close()


def place_of(context: InitContext, default: str | None = None) -> Place:
    """Give the place of the instance that is being built; its first element makes it.

    Args:
        context: What the element is given in ``init``.
        default: The device where the node's ``device`` is unset. None: that of an element before
            this one which had such a default, else the CPU.

    Raises:
        SetupError: There is no such device.
    """
    limit_torch_threads(context.threads)
    store = context.instance
    text = context.device
    if text is None:
        text = default or store.get(_DEFAULT) or "cpu"
        if default is not None and default != "cpu":
            store.get_or_create(_DEFAULT, lambda: default)
    device = check_device(text)

    def make() -> Place:
        place = Place(device, _stream_of(context, device))
        places: list[Place] = store.get_or_create(_PLACES, list)
        places.append(place)
        context.at_batch_end(place.end)
        return place

    found: Place = store.get_or_create(("headrace_torch.place", str(device)), make)
    return found


def places_of(context: InitContext) -> Callable[[], Sequence[Place]]:
    """Give what gives all places of the instance, those that later elements make too."""
    store = context.instance
    return lambda: store.get(_PLACES, ())


def _stream_of(context: InitContext, device: torch.device) -> torch.cuda.Stream | None:
    """Give the instance's stream on a CUDA device; whoever asks first makes it."""
    if device.type != "cuda":
        return None
    ordinal = device.index
    owner = context.instance.get_or_create(("cuda.stream", ordinal), lambda: OwnStream(ordinal))
    if isinstance(owner, OwnStream):
        return owner.stream
    stream: torch.cuda.Stream = torch.cuda.ExternalStream(owner.handle, device=device)
    return stream
