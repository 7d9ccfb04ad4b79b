"""``each``: one node, once per element of a list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    InputError,
    NoResultError,
    OverloadedError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._plan.links import Links
    from headrace.keys import Request

__all__ = ["elements", "gather"]


def elements(links: Links, request: Request) -> list[Request]:
    """Make one shallow copy per element of the list that ``each`` names.

    Raises:
        InputError: The key is missing, or holds no list.
    """
    assert links.each is not None  # noqa: S101 - the caller has looked
    source, target = links.each
    values: Any = request.get(source)
    if not isinstance(values, (list, tuple)):
        raise InputError(
            f"node {links.name!r} runs once per element of {source!r}",
            key=source,
            expected="a list",
            got=type(values).__name__ if source in request else "nothing",
            node=links.name,
        )
    copies = []
    for value in values:
        copy = dict(request)
        copy.pop("result", None)
        copy[target] = value
        copies.append(copy)
    return copies


def gather(
    links: Links,
    request: Request,
    copies: Sequence[Request],
    errors: Sequence[BaseException | None],
    deadline: float | None = None,
) -> BaseException | None:
    """Put the results of all elements into the request; give the error that fails it, if any.

    With ``each_errors = "none"`` an element may fail alone. What ends the request as a whole, its own
    deadline, a close or a full queue, is not the failure of an element.

    Args:
        links: How the node is linked.
        request: What is to have the results.
        copies: The elements.
        errors: Per element its error or None.
        deadline: That of the request, on the clock of ``time.monotonic()``; not the limit of the node.
    """
    late = deadline is not None and time.monotonic() >= deadline
    results = []
    for copy, error in zip(copies, errors, strict=True):
        if error is None and "result" not in copy:
            error = NoResultError(
                f"an element gave no 'result' in node {links.name!r}", node=links.name
            )
        if error is not None and (not links.keep_errors or _ends_all(error, late=late)):
            return error
        results.append(None if error is not None else copy["result"])
    request["result"] = results
    return None


def _ends_all(error: BaseException, *, late: bool) -> bool:
    """Tell whether an error is that of the whole request, of which an element only tells."""
    if isinstance(error, DeadlineExceededError):
        return late
    return isinstance(error, (ClosedError, OverloadedError)) or not isinstance(error, Exception)
