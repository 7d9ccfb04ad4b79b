"""Nodes that call nodes from an expression."""

from __future__ import annotations

from composed import loaded
from shared import Book, Item, settled, through_chain

import headrace

FORWARD = loaded(
    {
        "a": {"backend": "S[Work(tag=a),Forward[node.b]]", "max": 2, "instance_num": 2},
        "b": {"backend": "Work(tag=b,most=2)", "max": 2},
    }
)


def forward():
    """``Forward[node.b]`` in an expression: the thread waits for b, whose batches it may run, also with a deadline."""
    book = Book()
    items = [Item(n, bad="b" if n == 1 else "") for n in range(4)]
    with headrace.pipe(FORWARD) as pipe:
        book.thread(book.ask, pipe, items[0], through_chain(items[0]), node="a")
        book.thread(book.ask, pipe, items[1], through_chain(items[1]), node="a", timeout=20)
        book.thread(book.ask, pipe, items[2], ("b", items[2]), node="b", how="submit")
        book.thread(book.ask, pipe, items[3], through_chain(items[3]), node="a")
        book.join()
        settled(pipe)
