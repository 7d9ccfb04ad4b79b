"""Ctrl-C in the main thread at any moment, once: it is free at once, the others go on, the sums add up."""

from __future__ import annotations

from composed import CHAIN, Work, loaded
from shared import Book, Item, settled, through_chain

import headrace
from headrace.errors import ClosedError, DeadlineExceededError, RequestsFailed
from headrace_testing.interleavings import check, ctrl_c, settle

ONE = loaded({"backend": "Work(most=2)", "max": 2})
ONE_BY_ONE = loaded({"backend": "KeepingWork(most=1)", "max": 1})


def calls():
    """In calls at one node, and in a list: the instance comes back."""
    book = Book()
    items = [Item(n) for n in range(7)]
    with headrace.pipe(ONE) as pipe:
        book.thread(book.ask, pipe, items[5], ("a", items[5]))
        book.thread(book.ask, pipe, items[6], ("a", items[6]), how="submit")
        with ctrl_c():
            for item in items[:3]:
                request = {"data": item}
                pipe(request)
                check(request["result"] == ("a", item), f"{item}: {request}")
            pipe([{"data": item} for item in items[3:5]])
        book.join()
        pipe({"data": items[0]})
        settled(pipe)


def kept():
    """In a call that is kept as PENDING: afterwards the instance is there once, for two callers."""
    book = Book()
    items = [Item(n, keep="a" if n == 0 else "") for n in range(3)]
    with headrace.pipe(ONE_BY_ONE) as pipe:
        with ctrl_c():
            pipe({"data": items[0]})
        for item in items[1:]:
            book.thread(book.ask, pipe, item, ("a", item))
        book.join()
        settled(pipe)


def graph():
    """In a chain, a list, a call with a deadline, a future and a stream."""
    book = Book()
    items = [Item(n, slow="b" if n == 2 else "") for n in range(8)]
    with headrace.pipe(CHAIN) as pipe:
        book.thread(book.ask, pipe, items[0], through_chain(items[0]))
        book.thread(book.ask, pipe, items[1], through_chain(items[1]), how="submit")
        with ctrl_c():
            for item in items[2:4]:
                request = {"data": item}
                pipe(request)
                check(request["result"] == through_chain(item), f"{item}: {request}")
            pipe([{"data": item} for item in items[4:6]])
            pipe({"data": items[6]}, timeout=20)
            list(pipe.stream({"data": items[7]}))
        book.join()
        request = {"data": items[3]}
        pipe(request)
        check(request["result"] == through_chain(items[3]), f"after Ctrl-C: {request}")
        settled(pipe)


class ClosesWell(Work):
    def close(self):
        closed.append(self.tag)


closed = []
headrace.register("ClosesWell", ClosesWell)
CLOSES = loaded(
    {
        "a": {"backend": "ClosesWell(tag=a)", "max": 2, "next": "b"},
        "b": {"backend": "BackgroundThread[ClosesWell(tag=b)]"},
    }
)


def close():
    """In ``close``: all is closed all the same, once."""
    closed.clear()  # `loaded` has closed one
    book, refused = Book(), (ClosedError,)
    items = [Item(n) for n in range(2)]
    pipe = headrace.pipe(CLOSES)
    book.thread(book.ask, pipe, items[0], through_chain(items[0]), refused)
    book.thread(book.ask, pipe, items[1], through_chain(items[1]), refused, how="submit")
    with ctrl_c():
        pipe.close(timeout=5)
    pipe.close(timeout=5)  # once more: the first may not even have begun
    book.join()
    settle(40)
    check(sorted(closed) == ["a", "b"], f"closed: {closed}")


LONG = loaded({"backend": "Work(ms=3000)"})


def deadlines():
    """In the first requests with a deadline: afterwards deadlines pass, and requests are answered."""
    book = Book()
    with headrace.pipe(ONE) as pipe, headrace.pipe(LONG) as long:
        with ctrl_c():
            pipe.submit({"data": Item(0)}, timeout=50).result()
            pipe({"data": Item(1)}, timeout=50)
        late = long.submit({"data": Item(2)}, timeout=1)
        try:
            late.result(timeout=20)
            check(False, "a request outlasted its deadline")
        except DeadlineExceededError:
            pass
        item = Item(3)
        book.thread(book.ask, pipe, item, ("a", item))
        book.join()


class Leaves(BaseException):
    """What is no `Exception` out of a backend."""


class LeavesAtTwo(headrace.Backend):
    def forward(self, batch):
        (r,) = batch
        r["result"] = r["data"]
        if r["data"] == 2:
            raise Leaves


headrace.register("LeavesAtTwo", LeavesAtTwo)
LEAVES = loaded({"backend": "LeavesAtTwo"})


def no_exception():
    """A backend raises what is no `Exception` in the thread that waits for it: who waits behind it is answered."""
    with headrace.pipe(LEAVES) as pipe:

        def leaves():
            try:
                pipe([{"data": 1}, {"data": 2}])
                check(False, "nothing was raised")
            except (Leaves, RequestsFailed):  # the latter where another thread has run the batch
                pass

        book = Book()
        book.thread(leaves)
        futures = [pipe.submit({"data": n}) for n in (3, 4)]
        check([one.result()["result"] for one in futures] == [3, 4], "another answer")
        book.join()
        settled(pipe)
