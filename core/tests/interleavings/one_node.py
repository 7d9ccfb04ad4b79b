"""One node: callers beside each other, lists, deadlines, priorities."""

from __future__ import annotations

import threading

from shared import CHAIN, Book, Item, ready, settled, through_chain, works

from headrace import Pipeline
from headrace.blueprint import blueprint, node
from headrace.errors import DeadlineExceededError, InputError, RequestsFailed
from headrace_testing.interleavings import check

ONE = ready(works("a", most=2, max=2))
TWO = ready(works("a", most=2, max=2, instance_num=2))


def single():
    """Callers that run their own requests beside one that submits: one thread in an instance at a time."""
    book = Book()
    with Pipeline(ONE) as pipe:
        for n in range(3):
            item = Item(n)
            book.thread(book.ask, pipe, item, ("a", item), how="submit" if n == 1 else "call")
        book.join()
        settled(pipe, 3)


def same():
    """One dict from three threads: each gets its answer or is refused, and ``data`` is the caller's again."""
    item, outcomes = Item(0), []
    request = {"data": item}
    ways = (lambda: pipe(request), lambda: pipe.submit(request).result(), lambda: pipe([request]))

    def send(way):
        try:
            way()
        except (InputError, RequestsFailed):
            return
        outcomes.append(request.get("result"))

    book = Book()
    with Pipeline(TWO) as pipe:
        for way in ways:
            book.thread(send, way)
        book.join()
        wrong = [one for one in outcomes if one not in (("a", item), None)]
        check(outcomes and not wrong, lambda: f"{wrong} of {outcomes}")  # None: the next one begins
        check(request == {"data": item, "result": ("a", item)}, lambda: f"afterwards {request}")
        settled(pipe, 3)


def lists():
    """Lists from two threads and a single request, two instances: the outcomes of a list stay separate."""
    book = Book()
    with Pipeline(TWO) as pipe:
        items = [Item(n, bad="a" if n == 1 else "") for n in range(6)]
        book.thread(book.ask_list, pipe, items[:3], lambda item: ("a", item))
        book.thread(book.ask_list, pipe, items[3:5], lambda item: ("a", item))
        book.thread(book.ask, pipe, items[5], ("a", items[5]))
        book.join()
        settled(pipe, 6)


DEADLINES = ready(works("a", max=2, limits={"timeout_ms": 3}, next=["b"]), works("b", ms=1))


def deadlines():
    """Deadlines by ``timeout`` and ``timeout_ms``, some of which pass: late, or answered, never both, never nothing."""
    book, late = Book(), (DeadlineExceededError,)
    items = [Item(n, slow="a" if n < 2 else "") for n in range(5)]
    want = through_chain
    with Pipeline(DEADLINES) as pipe:
        book.thread(book.ask, pipe, items[0], want(items[0]), late, timeout=0.0015)
        book.thread(book.ask, pipe, items[1], want(items[1]), late, how="submit", timeout=0.002)
        book.thread(book.ask, pipe, items[2], want(items[2]), late)
        book.thread(book.ask_list, pipe, items[3:], want, late, timeout=0.0025)
        book.join()
        settled(pipe)


class Gate:
    def forward(self, batch):
        (r,) = batch
        order.append(r["data"].n)
        if r["data"].n == 0:
            entered.set()
            gate.wait()
        r["result"] = ("a", r["data"])


order, entered, gate = [], threading.Event(), threading.Event()
GATE = blueprint(node("a", Gate))


def priorities():
    """Of those that wait when the instance comes free, the greatest priority goes first, equals in order of arrival."""
    book = Book()
    items = [Item(n) for n in range(5)]
    with Pipeline(GATE) as pipe:
        book.thread(book.ask, pipe, items[0], ("a", items[0]))
        entered.wait()
        levels = zip(items[1:4], (0, 2, 2), strict=True)
        rest = [pipe.submit({"data": item}, priority=level) for item, level in levels]
        book.thread(book.ask, pipe, items[4], ("a", items[4]), priority=-1)
        gate.set()
        for future in rest:
            future.result()
        book.join()
        check([n for n in order if n != 4] == [0, 2, 3, 1], f"order of service {order}")
        settled(pipe, 5)


class Dies:
    def __init__(self, pipe, futures):
        self.pipe, self.futures = pipe, futures

    def __del__(self):
        self.futures.append(self.pipe.submit({"data": Item(100 + len(self.futures))}))
        self.pipe.stats()


def destructor():
    """Destructors that submit and ask for counts, of objects that die anywhere: in a batch, in an answer, in a queue."""
    book, futures = Book(), []
    items = [Item(n, bad="b" if n == 1 else "") for n in range(4)]

    def ask(pipe, item, how):
        request = {"data": item, "dies": Dies(pipe, futures)}
        call = (lambda: pipe(request)) if how else (lambda: pipe.submit(request).result())
        book.judge(request, item, through_chain(item), (), call)
        request.clear()

    with Pipeline(CHAIN) as pipe:
        for n, item in enumerate(items[:3]):
            book.thread(ask, pipe, item, n != 1)
        book.join()
        for future in futures:
            future.result()
        settled(pipe)
