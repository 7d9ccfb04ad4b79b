"""BackgroundThread: one thread owns a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._build.word import Building, Word

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._build.at import At
    from headrace._plan.element import Element

__all__ = ["BackgroundThread"]


class BackgroundThread(Word):
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
    Example:
        ``{"data": "abc"}`` gives ``"CBA"``::

            backend = "S[Upper,BackgroundThread[Reverse]]"
    """

    takes = 1
    _threaded = True
    _needs_of = 0

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Build X in the thread that will run and close it."""
        return building.in_thread(element, element.children[0], building.element, at)
