"""What the head of a request means: head, plan, body, pipeline, answer. The way of every request of HTTP.

A head decides nearly all: route and model, page and host, codings and headers. So it is read once. The `Plan` that comes of it
is kept by the bytes of the head, without those headers that differ for each request, and a later head with the same bytes is
neither parsed nor checked again. What may have changed meanwhile is asked for each request: the key, whether the model takes
requests and has room, which version an alias chooses.

`headrace_serve.http.protocol` reads the bytes, `headrace_serve.http.exchange` has the request while it is answered, and
`headrace_serve.http.endpoints` answers it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_formats import joined_headers
from headrace_serve.admission.codings import coding_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["LONGEST_HEAD", "Head", "Plan", "Plans"]

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

_LENGTHS = {b"content-length", b"inference-header-content-length"}
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
        is_plain: Whether the answer is sent as bytes of HTTP/1.1 with a body.
        is_coded: Whether the body is compressed, or comes in chunks.
        coding: How the answer may be compressed, ``""`` for not at all.
        passed: Whether the gate has let such a request in.
        keep: Keeps it, once the gate has let its request in. None where it is not kept, or already.
        used: Whether it was found since it was last its turn to leave.
        model: The model that such requests are for, in the ``catalogue``. None: it is looked for each time.
        form: What its route has made of the head for this model.
    """

    __slots__ = (
        "added", "catalogue", "coding", "form", "headers", "is_coded", "is_plain", "keep", "model", "passed",
        "path", "route", "scope", "used", "without_body",
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
        self.is_plain = scope.get("http_version") == "1.1" and scope["method"] != "HEAD"
        self.is_coded = b"content-encoding" in headers or b"transfer-encoding" in headers
        accepted = headers.get(b"accept-encoding")
        self.coding = "" if accepted is None else coding_for(accepted.decode("latin-1"))
        self.passed = self.used = False
        self.keep: Callable[[], None] | None = None
        self.model: Model | None = None
        self.catalogue: Any = None
        self.form: Any = None


class Head:
    """A head: its plan, and what differs for each request. Those whose heads have the same bytes share it.

    Attributes:
        plan, varying: The plan, and the headers beside it.
        length: How many bytes the body has.
        is_bare: Whether nothing differs but the lengths.
    """

    __slots__ = ("is_bare", "length", "plan", "varying")

    def __init__(self, plan: Plan, varying: dict[bytes, bytes], length: int = 0) -> None:
        self.plan, self.varying, self.length = plan, varying, length
        self.is_bare = varying.keys() <= _LENGTHS


class Plans:
    """The plans of the last heads: at most 256. The one that leaves was not used since it was last its turn.

    A head is first looked up by all of its bytes, then without what differs for each request.

    Args:
        service: Answers. Its models and keys decide, and where they change all plans are forgotten.
        make: Makes the plan of a parsed head, from its scope.
    """

    def __init__(self, service: Service, make: Callable[[Any], Plan]) -> None:
        self._service, self._make = service, make
        self._kept: dict[bytes, Plan] = {}
        self._heads: dict[bytes, Head] = {}
        self._catalogue: Any = service.models
        self._keys: Any = service.keys

    def find(self, written: bytes) -> Head | None:
        """Return what a whole head means; None where it has to be parsed."""
        service = self._service
        if self._catalogue is not service.models or self._keys is not service.keys:
            self._forget()
        head = self._heads.get(written)
        if head is not None:
            head.plan.used = True
            return head
        parts = _LINES.split(written)
        plan = self._kept.get(b"".join(parts[::3]))
        if plan is None:
            return None
        varying = dict(zip(map(bytes.lower, parts[1::3]), parts[2::3], strict=True))
        length = varying.get(b"content-length", b"0")
        if 3 * len(varying) < len(parts) - 1 or not length.isdigit() or len(length) > _DIGITS:
            return None
        plan.used = True
        head = Head(plan, varying, int(length))
        if head.is_bare:
            if len(self._heads) >= _MOST:
                self._heads.clear()
            self._heads[written] = head
        return head

    def _forget(self) -> None:
        self._kept.clear()
        self._heads.clear()
        self._catalogue, self._keys = self._service.models, self._service.keys

    def made(self, scope: Any, headers: list[tuple[bytes, bytes]]) -> Head:
        """Return what a parsed head means."""
        joined = joined_headers(headers)
        varying = {name: value for name, value in joined.items() if _IS_VARYING(name)}
        scope["headers"] = [header for header in joined.items() if header[0] not in varying]
        scope.pop("client", None)
        return Head(self._make(scope), varying)

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
            self._heads.clear()  # some may have its plan
            if left.used:  # it has a second chance
                left.used = False
                kept[oldest] = left
        kept[key] = plan
