"""Identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._backend import Backend
from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Identity"]


class Identity(Backend):
    """Give ``data`` as ``result``, the same object.

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1 or more; items are independent.

    Raises:
        InputError: ``data`` is missing.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"abc"``::

            backend = "Identity"
    """

    _reentrant = True

    rerun = True

    def forward(self, batch: list[Request]) -> None:
        """Set ``result`` to ``data`` in each request."""
        try:
            for request in batch:
                request["result"] = request["data"]
        except KeyError:
            what = "the request has no 'data'"
            raise InputError(what, key="data", expected="anything", got="nothing") from None
