"""Requests through several nodes: chains, branches, elements, and nodes that call nodes."""

from __future__ import annotations

from functools import partial

from shared import CHAIN, DIAMOND, Book, Item, ready, settled, through_chain, through_diamond, works

from headrace import Pipeline
from headrace.blueprint import Limits, Links, blueprint, node
from headrace.errors import BackendError, ContractError, DeadlineExceededError
from headrace_testing.interleavings import check, settle, sleep

LISTS = ready(works("a", max=4, next=["b"]), works("b", ms=10))


def chain():
    """Single requests, lists and a submitted one from several threads: nobody calls his own pipeline, so nobody is refused."""
    book = Book()
    items = [Item(n) for n in range(8)]

    def both(pipe):
        book.ask(pipe, items[0], through_chain(items[0]))
        book.ask_list(pipe, items[1:3], through_chain)

    with Pipeline(CHAIN) as pipe:
        book.thread(both, pipe)
        book.thread(book.ask_list, pipe, items[3:5], through_chain)
        book.thread(book.ask, pipe, items[5], through_chain(items[5]), how="submit")
        book.ask_list(pipe, items[6:], through_chain)  # of the main thread
        book.join()
        settled(pipe, 8)


def chain_lists():
    """Lists from three threads that meet at a slow node, beside single requests: nobody is refused."""
    book = Book()
    items = [Item(n) for n in range(8)]

    def first(pipe):
        book.ask(pipe, items[0], through_chain(items[0]))
        book.ask_list(pipe, items[1:3], through_chain)

    def second(pipe):
        sleep(0.01)
        book.ask_list(pipe, items[3:5], through_chain)

    with Pipeline(LISTS) as pipe:
        book.thread(first, pipe)
        book.thread(second, pipe)
        sleep(0.004)
        book.thread(book.ask, pipe, items[5], through_chain(items[5]), how="submit")
        book.ask_list(pipe, items[6:], through_chain)  # of the main thread
        book.join()
        settled(pipe, 8)


class Same:
    def forward(self, batch):
        for r in batch:
            r["result"] = r["data"]


class Notes(Same):
    """Notes the sizes of its batches."""

    def forward(self, batch):
        sizes.append(len(batch))
        super().forward(batch)


sizes = []
TOGETHER = blueprint(node("a", Same, max=8, next=["b"]), node("b", Notes, max=8))


def list_stays_together():
    """What ended together at one node enters the next one together: a list of 16 is two batches of 8 there."""
    book = Book()

    def ask(pipe):
        requests = [{"data": n} for n in range(16)]
        check(pipe(requests) is requests, "a list gives another list")
        check([r["result"] for r in requests] == [*range(16)], f"{requests}")

    with Pipeline(TOGETHER) as pipe:
        book.thread(ask, pipe)
        book.join()
        check(sizes == [8, 8], f"batches of {sizes}")


def diamond():
    """A call, a submitted request and a list: each has the result of the sink, of its own data."""
    book = Book()
    items = [Item(n, bad="c" if n == 2 else "") for n in range(4)]
    with Pipeline(DIAMOND) as pipe:
        book.thread(book.ask, pipe, items[0], through_diamond(items[0]))
        book.thread(book.ask, pipe, items[1], through_diamond(items[1]), how="submit")
        book.thread(book.ask_list, pipe, items[2:], through_diamond)
        book.join()
        settled(pipe)


def diamond_fails():
    """Of which one branch fails: the request fails with that error, and never has the result of a node before it."""
    book = Book()
    with Pipeline(DIAMOND) as pipe:
        book.thread(book.ask, pipe, Item(1, bad="b"), None, how="submit")
        book.join()
        settled(pipe)


OR = ready(works("a", max=2, next=["b"]), works("b", links={"otherwise": True}))


def otherwise():
    """``or``: b runs only for requests to which a gave no result."""
    book = Book()
    items = [Item(n, mute="a" if n % 2 else "") for n in range(5)]

    def want(item):
        return ("b", item) if item.mute else ("a", item)

    with Pipeline(OR) as pipe:
        book.thread(book.ask, pipe, items[0], want(items[0]))
        book.thread(book.ask, pipe, items[1], want(items[1]), how="submit")
        book.thread(book.ask, pipe, items[2], want(items[2]), how="submit")
        book.thread(book.ask_list, pipe, items[3:], want)
        book.join()
        settled(pipe)


def _each_of(*, each_errors=None, **keys):
    links = {"each": "items:data", "each_errors": each_errors}
    sink = node("b", Same, links=Links(map={"a": {"result": "data"}}))
    return ready(works("a", links=links, instance_num=2, next=["b"], **keys), sink)


EACH = _each_of()
EACH_NONE = _each_of(most=2, max=2, each_errors="none")


def each_fails():
    """An element fails: the request fails with its error, and not with that of an element that was cancelled for it."""
    book = Book()

    def ask(pipe, n, how):
        good, bad = Item(n), Item(n, bad="a")
        request = {"items": [bad, bad, good]}
        call = (lambda: pipe.submit(request).result()) if how else (lambda: pipe(request))
        book.judge(request, bad, None, (), call)

    with Pipeline(EACH) as pipe:
        for n in range(2):
            book.thread(ask, pipe, n, n == 0)
        book.join()
        settled(pipe)


def each_none():
    """``each_errors = "none"``: the results stand in order, None where an element failed."""
    book = Book()

    def ask(pipe, n, how):
        items = [Item(10 * n + k, bad="a" if k == 1 else "") for k in range(3)]
        request = {"items": items}
        answer = pipe.submit(request).result() if how else pipe(request)
        check(answer["result"] == [("a", items[0]), None, ("a", items[2])], f"{answer}")

    with Pipeline(EACH_NONE) as pipe:
        for n in range(3):
            book.thread(ask, pipe, n, n == 0)
        book.join()
        settled(pipe)


class CallsInner:
    def forward(self, batch):
        for r in batch:
            r["result"] = ("a", inner[0]({"data": r["data"]})["result"])


inner = []
NEVER = Limits(deadlock_after_s=0)
OUTER = blueprint(node("a", CallsInner, instance_num=2, limits=NEVER))
INNER = ready(works("b"))


def nested():
    """Backends that call a second pipeline: nothing goes round, so nobody is refused, neither a list nor a late caller."""
    book = Book()
    items = [Item(n) for n in range(5)]

    def want(item):
        return ("a", ("b", item))

    late = (DeadlineExceededError,)
    with Pipeline(INNER) as second, Pipeline(OUTER) as pipe:
        inner[:] = [second]
        book.thread(book.ask_list, pipe, items[:2], want)
        book.thread(book.ask, pipe, items[2], want(items[2]), late, timeout=0.0005)
        book.thread(book.ask, second, items[3], ("b", items[3]))
        book.thread(book.ask, pipe, items[4], want(items[4]), how="submit")
        book.join()
        settled(pipe)
        settled(second)


class CallsOther:
    def __init__(self, me):
        self.me = me

    def forward(self, batch):
        for r in batch:
            if r["data"].how == "cross":
                other = pipes[1 - self.me]
                other([{"data": Item(-1)}, {"data": Item(-2)}] if self.me else {"data": Item(-1)})
            r["result"] = (self.me, r["data"])


pipes = []
CROSSED = [blueprint(node("a", partial(CallsOther, me))) for me in (0, 1)]


def cycle():
    """Two pipelines whose backends call each other: somebody is refused where all would wait for ever, and nobody hangs."""
    book = Book()
    refused = (ContractError, BackendError)
    with Pipeline(CROSSED[0]) as a, Pipeline(CROSSED[1]) as b:
        pipes[:] = [a, b]
        for n in range(3):
            item = Item(n, how="cross" if n < 2 else "")
            me = n % 2
            how = "submit" if n == 1 else "call"
            book.thread(book.ask, pipes[me], item, (me, item), refused, how=how)
        book.join()
        settle()
