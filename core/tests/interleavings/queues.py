"""A full queue: who may come in is answered, who may not is told so, nobody is forgotten."""

from __future__ import annotations

from concurrent.futures import CancelledError
from contextlib import suppress

from shared import Book, Item, ready, settled, through_chain, works

from headrace import Pipeline
from headrace.errors import DeadlineExceededError, OverloadedError
from headrace_testing.interleavings import check, sleep


def _bounded(rule):
    limits = {"queue_size": 1, "queue_full": rule}
    return ready(works("a", next=["b"], limits=limits), works("b"))


REJECT, WAIT = _bounded("reject"), _bounded("wait")


def _crowd(config, errors=()):
    book = Book()
    items = [Item(n) for n in range(6)]
    with Pipeline(config) as pipe:
        for item in items[:2]:
            book.thread(book.ask, pipe, item, through_chain(item), errors)
        for item in items[2:4]:
            book.thread(book.ask, pipe, item, through_chain(item), errors, how="submit")
        book.thread(book.ask_list, pipe, items[4:], through_chain, errors)
        book.join()
        settled(pipe)


def reject():
    """``reject``: a crowd before a chain."""
    _crowd(REJECT, (OverloadedError,))


def wait():
    """``wait``: a crowd before a chain, of which nobody is refused."""
    _crowd(WAIT)


ROOM = ready(
    works("x", next=["a"]), works("a", next=["b"], limits={"queue_size": 1}), works("b", ms=10)
)


def room():
    """``wait``: a newcomer is let in once there is room, also when a request from another node has the instance."""
    book = Book()
    items = [Item(0), Item(1), Item(2, slow="a"), Item(3)]

    def ask(pipe, item, node, after_ms):
        sleep(after_ms / 1000)
        inner = ("a", ("x", item)) if node == "x" else ("a", item)
        book.ask(pipe, item, ("b", inner), node=node)

    with Pipeline(ROOM) as pipe:
        for item, node, after_ms in zip(items, "aaxa", (0, 3, 9, 10), strict=True):
            book.thread(ask, pipe, item, node, after_ms)
        book.join()
        settled(pipe)


def waiting_leave():
    """``wait``: of those who wait for room one is cancelled, one is late, and the last one is let in all the same."""
    book = Book()
    items = [Item(n, slow="a" if n == 0 else "") for n in range(5)]

    def submit(pipe):
        with suppress(DeadlineExceededError):
            pipe.submit({"data": items[3]}, timeout=0.5).result()

    def cancel(pipe):
        future = pipe.submit({"data": items[2]})
        told = future.cancel()
        try:
            future.result()
            check(not told, "cancelled, and there is a result")
        except CancelledError:
            check(future.cancelled(), "cancelled by nobody")

    with Pipeline(WAIT) as pipe:
        late = (DeadlineExceededError,)
        book.thread(book.ask, pipe, items[0], through_chain(items[0]))
        book.thread(book.ask, pipe, items[1], through_chain(items[1]), late, timeout=0.0005)
        book.thread(cancel, pipe)
        book.thread(submit, pipe)
        book.thread(book.ask, pipe, items[4], through_chain(items[4]))
        book.join()
        settled(pipe)
