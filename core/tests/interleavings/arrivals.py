"""Instances with threads of their own: requests that find all of them busy are put aside, and enter as the next batch ends."""

from __future__ import annotations

import threading

from shared import Book, Item, Work, loaded, settled

import headrace
from headrace.errors import BackendError, ClosedError
from headrace_testing.interleavings import check, settle


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


class Waits(OwnWork):
    def forward(self, batch):
        gate.wait()
        return super().forward(batch)


gate = threading.Event()
headrace.register("Waits", Waits)
BOUND = loaded({"main": {"backend": "Waits(most=1)", "max": 1, "queue_size": 2}})


def bound():
    """Two threads that submit while one batch runs: as many calls return as run, and as there is room for."""
    gate.clear()
    returned = []

    def sends(first):
        for n in range(first, first + 3):
            futures.append(pipe.submit({"data": Item(n)}))
            returned.append(n)

    with headrace.pipe(BOUND) as pipe:
        futures, book = [], Book()
        book.thread(sends, 0)
        book.thread(sends, 3)
        settle(1)
        found = len(returned)
        gate.set()
        book.join()
        check(len([one.result() for one in futures]) == 6, "not all were answered")
        settled(pipe)
        check(found <= 3, f"{found} calls returned while one ran and two could wait")


class Enters(OwnWork):
    @staticmethod
    def enter(request):
        entered.append(request["data"].n)
        if request["data"].n == 3:
            raise ValueError("three")


entered = []
headrace.register("Enters", Enters)
ENTERS = loaded({"main": {"backend": "Enters(ms=1)", "max": 1}})


def enters():
    """`enter` sees each request once, also one that it refuses while all are busy."""
    entered.clear()
    book = Book()
    with headrace.pipe(ENTERS) as pipe:
        for item in [Item(n) for n in range(4)]:
            book.thread(book.ask, pipe, item, ("a", item), (BackendError,))
        book.join()
    check(sorted(entered) == [0, 1, 2, 3], f"entered: {entered}")
