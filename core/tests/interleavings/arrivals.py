"""Instances with threads of their own: requests that find all of them busy are put aside, and enter as the next batch ends."""

from __future__ import annotations

from shared import Book, Item, Work, loaded, settled

import headrace
from headrace.errors import ClosedError


class OwnWork(Work):
    owns_thread = True


headrace.register("OwnWork", OwnWork)
NEVER_S = 1000
"""A request that waited for the look for circles would be seen as a hang."""
ONE = loaded(
    {
        "global": {"deadlock_after_s": NEVER_S},
        "main": {"backend": "OwnWork(most=2,ms=1)", "max": 2},
    }
)
TWO = loaded(
    {
        "global": {"deadlock_after_s": NEVER_S},
        "main": {"backend": "OwnWork(most=2)", "max": 2, "instance_num": 2},
    }
)


def _ask_all(book, pipe, items, how="call", may=()):
    for item in items:
        book.ask(pipe, item, ("a", item), may, how=how)


def callers():
    """Callers that come again and again, one of whose requests fails: no request stays behind, whoever ends a batch."""
    book = Book()
    with headrace.pipe(ONE) as pipe:
        for first in range(0, 12, 3):
            items = [Item(n, bad="a" if n == 4 else "") for n in range(first, first + 3)]
            book.thread(_ask_all, book, pipe, items, "submit" if first == 3 else "call")
        book.join()
        settled(pipe, 12)


def instances():
    """Two instances, of which one may come free while a request is put aside."""
    book = Book()
    with headrace.pipe(TWO) as pipe:
        for first in range(0, 12, 2):
            book.thread(_ask_all, book, pipe, [Item(first), Item(first + 1)])
        book.join()
        settled(pipe, 12)


def closing():
    """A close among them: each is answered or refused."""
    book = Book()
    pipe = headrace.pipe(ONE)
    for first in range(0, 8, 2):
        book.thread(_ask_all, book, pipe, [Item(first), Item(first + 1)], "call", (ClosedError,))
    pipe.close()
    book.join()
