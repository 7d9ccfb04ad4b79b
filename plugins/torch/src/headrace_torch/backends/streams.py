"""`SyncTensor` waits for the instance's stream; `StreamPool` runs a backend on further streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import InputError
from headrace_torch.backends.base import OnPlace, read_key

if TYPE_CHECKING:
    from headrace import Backend, InitContext
    from headrace.keys import Request

__all__ = ["StreamPool", "SyncTensor"]


class SyncTensor(OnPlace):
    """Wait for the instance's stream before the batch goes on. Results pass through unchanged.

    ``SyncTensor[X]`` waits after X, ``S[..., SyncTensor]`` at its place. Results are right without it, because the
    end of every batch synchronises the stream. Use it to measure times, or if code outside of this plugin reads
    device memory within the batch. On the CPU there is nothing to wait for.

    Reads:
        data: Anything: it is passed on; with a child, the data of the child.

    Writes:
        result: The value of ``data``; with a child, the result of the child.

    Batch:
        1 or more, or the range of the child.

    Raises:
        InputError: ``data`` is missing.
        BackendError: Earlier work has failed on the device.

    Source:
        The backend of torchpipe. The wait is Headrace's own.
    """

    takes = (0, 1)
    rerun = False  # the child has already run when the wait finds that work has failed
    reads: tuple[str, ...] | type = ("data",)

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the child, and a function for all places of the instance, also later ones."""
        from headrace_torch.devices.place import places_of

        self._child: Backend | None = context.children[0] if context.children else None
        if self._child is not None:
            self.reads = ()  # this backend itself reads nothing. The child declares its own keys
        self._places = places_of(context)

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the child, if there is one, and wait."""
        outcomes = self._pass_on(batch) if self._child is None else self._child(batch)
        for place in self._places():
            place.wait()
        return outcomes

    def _pass_on(self, batch: list[Request]) -> list[Exception | None] | None:
        outcomes: list[Exception | None] = [None] * len(batch)
        for index, request in enumerate(batch):
            try:
                request["result"] = read_key(request, "data", "anything")
            except InputError as error:
                outcomes[index] = error
        return outcomes if any(outcomes) else None


class StreamPool(OnPlace):
    """Run the backend inside on one of a few further streams: ``StreamPool(max=2)[X]``.

    The instances of a node share ``max`` streams. Each batch takes the one with the fewest users. Events
    order the work inside behind the earlier and before the later work of the instance's stream, so results are
    the same, but at most ``max`` streams compete for the device. On the CPU the backend does nothing.

    Reads:
        The inputs of the backend inside.

    Writes:
        result: The result of the backend inside.

    Batch:
        1 or more, or the range of the backend inside.

    Raises:
        BackendError: An error of the backend inside.

    Source:
        The backend of torchpipe. The order by events is Headrace's own.
    """

    class Options(headrace.Options):
        """How many streams.

        Attributes:
            max: How many streams the node's instances share.
        """

        max: int = Field(default=2, ge=1, le=31)

        positional = ("max",)

    takes = 1
    rerun = False
    reads = ()  # this backend itself reads nothing. The backend inside declares its own keys

    def build(self, options: Any, context: InitContext) -> None:
        """Get the node's shared streams on this device."""
        (self._child,) = context.children
        self._streams: Any = None
        if self._place.stream is not None:
            from headrace_torch.devices.pool import SharedStreams

            ordinal = self._place.device.index
            key = ("headrace_torch.streams", ordinal, options.max)
            self._streams = context.store.node.get_or_create(
                key, lambda: SharedStreams(ordinal, options.max)
            )

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the backend inside on one of the streams."""
        if self._streams is None:
            return self._child(batch)
        self._place.use()
        with self._streams.around(self._place, batch):
            return self._child(batch)
