"""`SyncTensor`: wait for the stream here; `StreamPool`: run something on further streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import InputError
from headrace_torch._tensor_backend import OnPlace, read_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace import Backend, InitContext
    from headrace.keys import Request

__all__ = ["StreamPool", "SyncTensor"]


class SyncTensor(OnPlace):
    """Wait for the instance's stream, here, before the batch goes on; otherwise transparent.

    ``SyncTensor[X]`` waits after X, ``S[..., SyncTensor]`` at its place. Results are right without
    it: every batch is waited for at its end. It helps whoever measures, or reads memory of a device
    past this plugin. On the CPU there is nothing to wait for.

    Reads:
        data: Anything, which is passed on; with a child what that reads.

    Writes:
        result: ``data``; with a child what that writes.

    Batch:
        1 or more, or the range of the child.

    Raises:
        InputError: ``data`` is missing.
        BackendError: Something that was started before has failed on the device.

    Source:
        The word of torchpipe; the wait is own.
    """

    takes = (0, 1)
    rerun = False  # what is inside has run, when the wait finds that something failed

    def build(self, options: Any, context: InitContext) -> None:
        """Take the child, and all places of the instance, those made later as well."""
        from headrace_torch.place import places_of

        self._child: Backend | None = context.children[0] if context.children else None
        if self._child is not None:
            self.reads = ()  # itself; the child needs what it needs
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
    """Let what is inside run on one of a few further streams: ``With[StreamPool(max=2),X]``.

    The instances of a node share ``max`` streams, each batch takes the one that the fewest use. It
    is ordered by events, behind what the instance's stream has been given before and before what it
    is given after, so results are the same; what several instances run inside shares the device
    through at most ``max`` streams. On the CPU it does nothing.

    Reads:
        data: What the backend inside reads.

    Writes:
        result: What the backend inside writes.

    Batch:
        1 or more, or the range of the backend inside.

    Raises:
        BackendError: What the backend inside raises.

    Source:
        The word of torchpipe; the order by events is own.
    """

    class Options(headrace.Options):
        """How many streams."""

        max: int = Field(
            default=2, ge=1, le=31, description="How many streams the node's instances share."
        )

        positional = ("max",)

    takes = 1
    rerun = False

    def build(self, options: Any, context: InitContext) -> None:
        """Take the node's streams on this device."""
        self.reads = ()  # itself; what is inside needs what it needs
        self._streams: Any = None
        if self._place.stream is not None:
            from headrace_torch.pool import SharedStreams

            ordinal = self._place.device.index
            key = ("headrace_torch.streams", ordinal, options.max)
            self._streams = context.shared.get_or_create(
                key, lambda: SharedStreams(ordinal, options.max)
            )

    def forward_with_dep(
        self, batch: Sequence[Request], dependency: Backend
    ) -> list[Exception | None] | None:
        """Run the backend inside on one of the streams."""
        if self._streams is None:
            return dependency(batch)
        self._place.use()
        with self._streams.around(self._place, batch):
            return dependency(batch)
