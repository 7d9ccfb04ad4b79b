"""For ``headrace conformance headrace-flow``: the backends of queues, each in an expression that ends on its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = [
    "CacheConformance",
    "ConcurrencyConformance",
    "FallbackConformance",
    "HasKeyConformance",
    "IterateConformance",
    "LoopConformance",
    "NotHasKeyConformance",
    "ObserverConformance",
    "OnceConformance",
    "QueueConformance",
    "RandomConformance",
    "RecvConformance",
    "RepostConformance",
    "RestartConformance",
    "ScriptConformance",
    "SendConformance",
    "StateFulConformance",
]


class ObserverConformance(BackendConformance):
    """`Observer`, whose queue drops its oldest requests, since nobody takes them."""

    expression = "Observer(seen)"

    def make_item(self, k: int) -> Request:
        """Return a request whose number no other request has."""
        return {"data": [k, k + 1]}

    def expected(self, k: int) -> Any:
        """Return what came."""
        return self.make_item(k)["data"]


class SendConformance(ObserverConformance):
    """`Send`, into a queue that never becomes full."""

    expression = "Send(q)"
    options = {"init": "Queue(q,max=1000000)"}  # noqa: RUF012 - a class of this kind is a table
    expected_failures = {  # noqa: RUF012 - the same
        "requests-released": "a queue keeps what nobody takes out, and nobody does here"
    }


class _SentAndReceived(ObserverConformance):
    # Another instance may take what this one has sent: all requests bring the same value.
    expression = "S[Send(q),Recv(q)]"
    options = SendConformance.options

    def make_item(self, k: int) -> Request:
        """Return a request that differs from others in its identifier."""
        return {"data": "sent", "request_id": k}


class RecvConformance(ObserverConformance):
    """`Recv`, after the `Send` from which it takes."""

    expression = "Recv(q)"
    inside = _SentAndReceived


class _Declared(ObserverConformance):
    expression = "Observer(q)"
    options = {"init": "Queue(q,max=8)"}  # noqa: RUF012 - a class of this kind is a table


class QueueConformance(ObserverConformance):
    """`Queue`, which only declares a queue, beside an `Observer` that uses it."""

    expression = "Queue(q,max=8)"
    inside = _Declared


class _Answered(ObserverConformance):
    # Every request is answered before, so that none is sent on.
    expression = "S[Identity,(or)Repost[main]]"


class RepostConformance(ObserverConformance):
    """`Repost`, after a backend that answers every request."""

    expression = "Repost[main]"
    inside = _Answered


class RestartConformance(ObserverConformance):
    """`Restart`, of requests that ask for none."""

    expression = "Restart(nodes=[main])"


class HasKeyConformance(ObserverConformance):
    """`HasKey`, with two branches."""

    expression = "HasKey(mask)[S[Identity],Identity]"

    def make_item(self, k: int) -> Request:
        """Return a request whose numbers no other request has."""
        return {"data": [k, k + 1], "mask": k + 2}


class NotHasKeyConformance(HasKeyConformance):
    """`NotHasKey`, with two branches."""

    expression = "NotHasKey(mask)[S[Identity],Identity]"


class FallbackConformance(ObserverConformance):
    """`Fallback`, with two children that can be built."""

    expression = "Fallback[Identity,S[Identity,Identity]]"


class RandomConformance(ObserverConformance):
    """`Random`, with two branches, of which one is drawn for each request."""

    expression = "Random(0.5)[S[Identity],Identity]"


class CacheConformance(ObserverConformance):
    """`Cache`, around what gives the text that it is given."""

    expression = "Cache(entries=100)[Identity]"

    def make_item(self, k: int) -> Request:
        """Return a text that no other request has."""
        return {"data": f"text {k}"}


class OnceConformance(CacheConformance):
    """`Once`, around what gives the text that it is given."""

    expression = "Once[Identity]"


class ConcurrencyConformance(CacheConformance):
    """`Concurrency`, around what gives the text that it is given."""

    expression = "Concurrency(name=kit,most=1)[Identity]"


@dataclass(frozen=True, eq=False)
class _Alone:
    """A session of its own, although it holds what others hold."""

    number: int


class StateFulConformance(ObserverConformance):
    """`StateFul` around a backend whose result is the session's next input ``before``."""

    expression = "StateFul(session)[Identity]"
    options = {"keep": {"result": "before"}}  # noqa: RUF012 - as above

    def make_item(self, k: int) -> Request:
        """Return a request of a session of its own, also where the kit asks for the same one twice."""
        # It ends at once, so that nothing of it is kept.
        return {"data": [k, k + 1], "session": _Alone(k), "sequence_end": True}


class IterateConformance(ObserverConformance):
    """`Iterate`, around a backend whose answer is there after one step."""

    expression = "Iterate(until=result)[Identity]"


class LoopConformance(IterateConformance):
    """`Loop`, until its child has written the key, which it does at once."""

    expression = "Loop(until=result,limit=2)[Identity]"


class ScriptConformance(BackendConformance):
    """`Script`, with a function that waits for calls of its own node."""

    expression = f"Script('{(Path(__file__).parent / 'counting.py').as_posix()}:count')"

    def make_item(self, k: int) -> Request:
        """Return a request whose number few others have."""
        return {"data": k % 7}

    def expected(self, k: int) -> Any:
        """Return the numbers down to 0."""
        return [*range(k % 7, -1, -1)]
