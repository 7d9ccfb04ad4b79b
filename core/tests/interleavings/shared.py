"""What the programs share: a backend that watches over itself, callers that keep books, and the sums at the end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import headrace
from headrace.errors import RequestsFailed, SetupError
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


class Work(headrace.Backend):
    """`result` is (tag, data). Checks that one thread runs it at a time, and that no batch is above its limit."""

    max = None

    class Options(headrace.Options):
        tag: str = "a"
        ms: float = 0.0
        most: int = 0

    def init(self, options, context):
        self.tag, self.ms, self.most, self.c = options.tag, options.ms, options.most, context
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
            return [self.one(r, item_of(r["data"])) for r in batch]
        finally:
            self.inside = None

    def one(self, r, item):
        if self.tag in item.bad:
            return BadError(f"{item} fails at {self.tag}")
        if self.tag in item.keep and not item.resumed:
            self.c.request.kept(r)
            later(self.c, r, item, (self.tag, r["data"]))
            return headrace.PENDING
        if self.tag not in item.mute:
            r["result"] = (self.tag, r["data"])
        return None


def later(context, request, item, outcome):
    """Finish or resume a kept request in a thread of its own."""

    def act():
        if item.how == "resume":
            item.resumed = True
            context.request.resume(request)
            return
        first = context.request.finish(request, outcome)
        again = context.request.finish(request, ("late", item))
        check(not again or not first, "finish gave True twice")

    threading.Thread(target=act, name=f"later{item.n}", daemon=True).start()


class KeepingWork(Work):
    """Keeps the items that say so."""

    keeps = True


headrace.register("Work", Work)
headrace.register("KeepingWork", KeepingWork)


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
    for name, node in pipe.stats()["nodes"].items():
        failed = sum(node["failed"].values())
        sums = {k: node[k] for k in ("waiting", "submitted", "ok", "cancelled", "failed")}
        busy = [one["busy"] for one in node["instances"]]
        text = f"{name}: {sums}, busy {busy}"
        check(node["waiting"] == 0 and node["ok"] >= 0, f"counts of {text}")
        cancelled = 0 if "cancelled" in node["failed"] else node["cancelled"]
        check(node["submitted"] == node["ok"] + failed + cancelled, f"sums of {text}")
        check(not any(busy), f"busy at the end: {text}")
        check(each in (None, node["submitted"]), f"{each} should have come to {text}")


def loaded(config, *, deadlock_after_s=0):
    """Read a configuration before the first schedule, and import what is imported once; `headrace.pipe` takes it.

    Nobody looks for circles of calls, so that who is forgotten waits for ever, and is seen.
    """
    config = {
        **config,
        "global": {"deadlock_after_s": deadlock_after_s, **config.get("global", {})},
    }
    with contextlib.suppress(SetupError):  # a backend may need a thread
        headrace.pipe(config)  # never used
    return headrace.PipelineConfig.load(config)


CHAIN = loaded(
    {"a": {"backend": "Work(tag=a)", "max": 2, "next": "b"}, "b": {"backend": "Work(tag=b)"}}
)
KEPT_CHAIN = loaded(
    {
        "a": {"backend": "KeepingWork(tag=a)", "max": 2, "next": "b"},
        "b": {"backend": "KeepingWork(tag=b)"},
    }
)


def through_chain(item):
    return ("b", ("a", item))


DIAMOND = {  # a -> b, c -> d
    "a": {"backend": "Work(tag=a)", "next": "b,c"},
    "b": {"backend": "Work(tag=b)", "next": "d"},
    "c": {"backend": "Work(tag=c)", "next": "d"},
    "d": {
        "backend": "Work(tag=d)",
        "map": {"b": {"result": "data"}, "c": {"result": "other"}},
    },
}


def through_diamond(item):
    return ("d", ("b", ("a", item)))
