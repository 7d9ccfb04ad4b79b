"""What the programs share: nodes that watch over themselves, callers that keep books, and the sums at the end.

Nothing of the language is loaded: the pipelines are made of plain objects.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from headrace import Pipeline
from headrace.blueprint import Limits, Links, blueprint, node
from headrace.errors import RequestsFailed
from headrace_testing.interleavings import check, settle

logging.disable(logging.CRITICAL)


class Item:
    """The data of one request; each of these names the tags of the nodes where that happens.

    Attributes:
        bad: It fails.
        keep: It is kept as PENDING, and then ended as ``how`` says: by finish, or by resume.
        slow: It takes a millisecond.
        mute: It gets no result.
    """

    def __init__(self, n, bad="", keep="", slow="", mute="", how="finish"):
        self.n, self.bad, self.keep, self.slow, self.mute, self.how = n, bad, keep, slow, mute, how
        self.resumed = False

    def __repr__(self):
        return f"item{self.n}"


def item_of(value):
    while isinstance(value, tuple):
        value = value[1]
    return value


class BadError(Exception):
    pass


class Work:
    """`result` is (tag, data). Checks that one thread runs it at a time, and that no batch is above its limit."""

    def __init__(self, tag="a", ms=0.0, most=0):
        self.be(tag, ms, most)

    def be(self, tag, ms, most):
        self.tag, self.ms, self.most = tag, ms, most
        self.inside = None
        self.step = threading.Lock()

    def forward(self, batch):
        me, tag = threading.get_ident(), self.tag
        check(self.inside is None, lambda: f"two threads in one instance of {tag}")
        check(not self.most or len(batch) <= self.most, lambda: f"a batch of {len(batch)} at {tag}")
        self.inside = me
        try:
            with self.step:  # others may go on here
                pass
            if self.ms or any(tag in item_of(r["data"]).slow for r in batch):
                time.sleep((self.ms or 1) / 1000)
            return [self.outcome(r, item_of(r["data"])) for r in batch]
        finally:
            self.inside = None

    def outcome(self, r, item):
        if self.tag in item.bad:
            return BadError(f"{item} fails at {self.tag}")
        if self.tag not in item.mute:
            r["result"] = (self.tag, r["data"])
        return None


class Book:
    """Each request has exactly one outcome, its own."""

    def __init__(self):
        self.outcomes, self.threads = {}, []

    def note(self, key, outcome):
        check(
            key not in self.outcomes,
            lambda: f"item{key} has two outcomes: {self.outcomes[key]} and {outcome}",
        )
        self.outcomes[key] = outcome

    def judge(self, request, item, want, errors, call):
        """Call, and judge the outcome: `want`, or one of the `errors`; return the error."""
        own = "data" in request
        try:
            answer = call()
        except BaseException as error:
            cause = error.__cause__
            if item.bad and isinstance(cause, BadError):
                check(str(item) in str(cause), lambda: f"{item} has the error of another: {cause}")
            elif not isinstance(error, errors):
                raise
            free = not getattr(error, "abandoned", False)
            text = f"{item} failed with {error!r}, and has a result: {request.get('result')}"
            check(not free or "result" not in request, text)
            self.note(item.n, type(error).__name__)
            return error
        check(not item.bad, lambda: f"{item} should fail, and has {answer.get('result')}")
        check(
            answer is request and answer["result"] in (want if isinstance(want, list) else [want]),
            lambda: f"{item}: {answer.get('result')} instead of {want}",
        )
        check(not own or answer["data"] is item, lambda: f"{item}: data is {answer['data']}")
        self.note(item.n, "ok")
        return None

    def ask(self, pipe, item, want, errors=(), how="call", node=None, **terms):
        """Send one request, by `call` or `submit`."""
        request = {"data": item} if node is None else {"data": item, "node_name": node}
        if how == "call":
            return self.judge(request, item, want, errors, lambda: pipe(request, **terms))
        future = lambda: pipe.submit(request, **terms).result()  # noqa: E731
        return self.judge(request, item, want, errors, future)

    def ask_list(self, pipe, items, want, errors=(), **terms):
        """Send a list: `want(item)` is the outcome of each."""
        requests = [{"data": one} for one in items]
        failures = [None] * len(items)
        try:
            answers = pipe(requests, **terms)
            check(answers == requests, "a list gives another list")
        except RequestsFailed as failed:
            failures = failed.errors
        except errors as error:  # the list as a whole was refused
            failures = [error] * len(items)

        def outcome(request, error):
            if error is not None:
                raise error
            return request

        for request, item, error in zip(requests, items, failures, strict=True):
            call = lambda r=request, e=error: outcome(r, e)  # noqa: E731
            self.judge(request, item, want(item), errors, call)

    def thread(self, function, *args, **kwargs):
        name = f"{getattr(function, '__name__', 'call')}{len(self.threads)}"
        t = threading.Thread(target=function, args=args, kwargs=kwargs, name=name)
        self.threads.append(t)
        t.start()
        return t

    def join(self):
        for t in self.threads:
            t.join()


def settled(pipe, each=None):
    """Check that all requests are over and the counts add up. `each`: how many came to each node, where that is known."""
    settle()  # what a failed request has left running ends
    for name, counts in pipe.stats()["nodes"].items():
        failed = sum(counts["failed"].values())
        sums = {k: counts[k] for k in ("waiting", "submitted", "ok", "cancelled", "failed")}
        busy = [one["busy"] for one in counts["instances"]]
        text = f"{name}: {sums}, busy {busy}"
        check(counts["waiting"] == 0 and counts["ok"] >= 0, f"counts of {text}")
        cancelled = 0 if "cancelled" in counts["failed"] else counts["cancelled"]
        check(counts["submitted"] == counts["ok"] + failed + cancelled, f"sums of {text}")
        check(not any(busy), f"busy at the end: {text}")
        check(each in (None, counts["submitted"]), f"{each} should have come to {text}")


def works(name, make=Work, *, ms=0.0, most=0, links=None, deadlock_after_s=0, limits=None, **keys):
    """Describe a node of `Work`, or of what another function makes of a tag, a time and a limit.

    Nobody looks for circles of calls, so that who is forgotten waits for ever, and is seen.
    """
    bounds = Limits(deadlock_after_s=deadlock_after_s, **(limits or {}))
    linked = Links(**(links or {}))
    return node(name, partial(make, name, ms, most), links=linked, limits=bounds, **keys)


def ready(*nodes):
    """Describe a pipeline before the first schedule, and import what is imported once."""
    described = blueprint(*nodes)
    Pipeline(described)  # never used
    return described


CHAIN = ready(works("a", max=2, next=["b"]), works("b"))


def through_chain(item):
    return ("b", ("a", item))


TO_SINK = {"b": {"result": "data"}, "c": {"result": "other"}}


def diamond(**keys):
    """Describe a -> b, c -> d, with some keys of b and c."""
    middle = [works(name, next=["d"], **keys) for name in "bc"]
    return ready(works("a", next=["b", "c"]), *middle, works("d", links={"map": TO_SINK}))


DIAMOND = diamond()


def through_diamond(item):
    return ("d", ("b", ("a", item)))
