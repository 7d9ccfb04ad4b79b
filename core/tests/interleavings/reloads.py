"""Reload while requests run, from two threads, in a graph, and while the pipeline closes."""

from __future__ import annotations

from contextlib import suppress

from shared import DIAMOND, Book, Item, Work, loaded, settled, through_chain, through_diamond

import headrace
from headrace.errors import ClosedError, InstanceLostError
from headrace_testing.interleavings import check, settle

ONE = loaded({"backend": "Work(most=2)", "max": 2})


def under_load():
    """From two threads: every request is answered, and no instance is run twice at a time."""
    book = Book()
    with headrace.pipe(ONE) as pipe:
        for n in range(3):
            item = Item(n, keep="a" if n == 2 else "")
            errors = (InstanceLostError,) if item.keep else ()  # a reload ends what its node keeps
            wants = [("a", item), ("late", item)], errors
            book.thread(book.ask, pipe, item, *wants, how="submit" if n == 1 else "call")
        book.thread(pipe.reload, "main", {"instance_num": 2})
        book.thread(pipe.reload, "main", {"max": 1})
        item = Item(3)
        book.thread(book.ask, pipe, item, ("a", item))
        book.join()
        settled(pipe, 4)


GRAPH = loaded(DIAMOND)


def in_graph():
    """Of two nodes of a diamond, one of which gets another successor: requests under way keep their way."""
    book = Book()
    items = [Item(n, bad="c" if n == 2 else "") for n in range(5)]
    with headrace.pipe(GRAPH) as pipe:
        book.thread(book.ask, pipe, items[0], through_diamond(items[0]))
        book.thread(pipe.reload, "b", {"instance_num": 2})
        book.thread(book.ask, pipe, items[1], through_diamond(items[1]), how="submit")
        book.thread(pipe.reload, "d", {"max": 1})
        book.thread(book.ask_list, pipe, items[2:], through_diamond)
        book.join()
        settled(pipe, 5 if not any(item.bad for item in items) else None)


class Counts(Work):
    def init(self, options, context):
        super().init(options, context)
        made.append(self)

    def close(self):
        closed.append(self)


made, closed = [], []
headrace.register("Counts", Counts)
OWN = loaded(
    {
        "a": {"backend": "BackgroundThread[Counts(tag=a)]", "max": 2, "next": "b"},
        "b": {"backend": "Work(tag=b)"},
    }
)


def while_closing():
    """With threads of the backends' own: both return, every request is answered or refused, all is closed once."""
    book, closing = Book(), (ClosedError,)
    items = [Item(n) for n in range(3)]
    want = through_chain
    pipe = headrace.pipe(OWN)

    def reload():
        with suppress(ClosedError):
            pipe.reload("a", {"instance_num": 2}, timeout=10)

    book.thread(book.ask, pipe, items[0], want(items[0]), closing)
    book.thread(reload)
    book.thread(book.ask, pipe, items[1], want(items[1]), closing, how="submit")
    book.thread(pipe.close, timeout=5)
    book.thread(book.ask, pipe, items[2], want(items[2]), closing)
    book.join()
    settle(20)
    check(
        sorted(map(id, made)) == sorted(map(id, closed)), f"{len(made)} made, {len(closed)} closed"
    )
