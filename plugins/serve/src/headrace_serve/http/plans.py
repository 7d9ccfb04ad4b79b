"""What the head of a request means: head, plan, body, pipeline, answer. The way of every request of HTTP.

A head decides nearly all: route and model, page and host, codings and headers. So it is read once. The `Plan` that comes of it
is kept by the bytes of the head, without those headers that differ for each request, and a later head with the same bytes is
neither parsed nor checked again. What may have changed meanwhile is asked for each request: the key, whether the model takes
requests and has room, which version an alias chooses.

`headrace_serve.http.protocol` reads the bytes, `headrace_serve.http.exchange` has the request while it is answered, and the
handlers of `headrace_serve.http.rest` answer it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_formats import joined_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["LONGEST_HEAD", "Plan", "Plans"]

LONGEST_HEAD = 2048
"""Longer heads (bytes) are read anew each time."""

_MOST = 256
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")

_VARYING = (
    rb"traceparent|tracestate|baggage|x-request-id|authorization|cookie|content-length|inference-header-content-length"
    rb"|x-forwarded-[a-z-]+|x-share-key|x-api-key|x-timing|x-request-timeout-ms"
)
"""Headers that differ for each request, and are read for each. Of these the length alone says how the request is framed."""

_IS_VARYING = re.compile(_VARYING).fullmatch
_LINES = re.compile(
    rb"\r\n("
    + _VARYING
    + rb"):[ \t]*((?:[\x21-\x7e\x80-\xff][\t\x20-\x7e\x80-\xff]*)?)(?<![ \t])(?=\r\n[^ \t])",
    re.IGNORECASE,
)
"""A line of such a header. Its value has no control character and no blank at its end, and the next line does not continue it."""

_DIGITS = 15
_FRAMED = re.compile(
    rb"\r\n[ \t]|\r\n(transfer-encoding|content-length|expect|upgrade|http2-settings)[ \t]*:",
    re.IGNORECASE,
)
"""What lets a head be read anew each time: it says in more than a length how the request is framed, or has a line of two."""


class Plan:
    """What a head means.

    Attributes:
        route: What answers it: see `headrace_serve.http.rest.Endpoint`.
        scope: The scope of ASGI for every request with this head, without what belongs to a connection.
        path: The values of the names in the path.
        headers: The headers, but for those that differ for each request. Names in lower case.
        added: Headers that its answers have: those for a page of another origin.
        without_body: Whether requests of its method have no body.
        passed: Whether the gate has let such a request in.
        keep: Keeps it, once the gate has let its request in. None where it is not kept, or already.
        used: Whether it was found since it was last its turn to leave.
        model: The model that such requests are for, in the ``catalogue``. None: it is looked for each time.
    """

    __slots__ = (
        "added", "catalogue", "headers", "keep", "model", "passed", "path", "route", "scope",
        "used", "without_body",
    )  # fmt: skip

    def __init__(
        self,
        route: Any,
        scope: Any,
        path: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        added: Mapping[str, str],
    ) -> None:
        self.route, self.scope, self.path = route, scope, path
        self.headers, self.added = headers, added
        self.without_body = scope["method"] in _WITHOUT_BODY
        self.passed = self.used = False
        self.keep: Callable[[], None] | None = None
        self.model: Model | None = None
        self.catalogue: Any = None


class Plans:
    """The plans of the last heads: at most 256. The one that leaves was not used since it was last its turn.

    Args:
        service: Answers. Its models and keys decide, and where they change all plans are forgotten.
        make: Makes the plan of a parsed head, from its scope.
    """

    def __init__(self, service: Service, make: Callable[[Any], Plan]) -> None:
        self._service, self._make = service, make
        self._kept: dict[bytes, Plan] = {}
        self._catalogue: Any = service.models
        self._keys: Any = service.keys

    def find(self, head: bytes) -> tuple[Plan, dict[bytes, bytes], int] | None:
        """Return the plan of a whole head, the headers beside it and the length of the body; None where it has to be parsed."""
        service = self._service
        if self._catalogue is not service.models or self._keys is not service.keys:
            self._kept.clear()
            self._catalogue, self._keys = service.models, service.keys
        parts = _LINES.split(head)
        plan = self._kept.get(b"".join(parts[::3]))
        if plan is None:
            return None
        varying = dict(zip(map(bytes.lower, parts[1::3]), parts[2::3], strict=True))
        length = varying.get(b"content-length", b"0")
        if 3 * len(varying) < len(parts) - 1 or not length.isdigit() or len(length) > _DIGITS:
            return None
        plan.used = True
        return plan, varying, int(length)

    def made(
        self, scope: Any, headers: list[tuple[bytes, bytes]]
    ) -> tuple[Plan, dict[bytes, bytes]]:
        """Return the plan of a parsed head, and the headers that differ for each request."""
        joined = joined_headers(headers)
        varying = {name: value for name, value in joined.items() if _IS_VARYING(name)}
        scope["headers"] = [header for header in joined.items() if header[0] not in varying]
        scope.pop("client", None)
        return self._make(scope), varying

    def note(self, plan: Plan, head: bytes) -> None:
        """Note from which bytes a plan was made, so that it is kept once its request has passed the gate."""
        service, key = self._service, b"".join(_LINES.split(head)[::3])
        one_way = head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r")
        if one_way and _FRAMED.search(key) is None:
            plan.keep = partial(self._keep, plan, key, service.models, service.keys)
            if plan.passed:
                plan.keep()

    def _keep(self, plan: Plan, key: bytes, catalogue: Any, keys: Any) -> None:
        plan.keep = None
        kept, service = self._kept, self._service
        if catalogue is not service.models or keys is not service.keys:
            return
        while len(kept) >= _MOST:
            oldest = next(iter(kept))
            left = kept.pop(oldest)
            if left.used:  # it has a second chance
                left.used = False
                kept[oldest] = left
        kept[key] = plan
