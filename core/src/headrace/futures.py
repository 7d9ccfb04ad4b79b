"""Answers that come later: to who has sent a request, and from a backend that keeps one.

`headrace.Pipeline.submit` gives a `RequestFuture`. Who stands between a caller and a pipeline, as a
model that is still to be built does, gives a `RelayFuture`. A backend that answers later has a
`Handle` from ``context.request.keep(request)``: see `headrace.InitContext`.
"""

from headrace._run.requests.futures import RelayFuture, RequestFuture
from headrace._run.requests.keeping import Handle

__all__ = ["Handle", "RelayFuture", "RequestFuture"]
