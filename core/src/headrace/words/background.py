"""BackgroundThread: one thread owns a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._backend import Backend

if TYPE_CHECKING:
    from headrace._backend import Outcomes
    from headrace._context import InitContext
    from headrace._scheduling.calls import OwnThread
    from headrace.keys import Request

__all__ = ["BackgroundThread"]


class BackgroundThread(Backend):
    """Let one thread own X: ``init``, every ``forward`` and ``close`` of X happen in it.

    Around a whole instance it costs one hand-over per batch; inside an expression the calling
    thread waits for it.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises.
    Source:
        own
    """

    takes = 1
    thread: OwnThread

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the range of X, which the builder has built in `thread`."""
        (self.child,) = context.children
        self.min, self.max = self.child.min, self.child.max
        self.rerun = self.child.rerun  # type: ignore[misc]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run X on the batch in its thread."""
        return self.thread.call(self.child, batch)

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)
