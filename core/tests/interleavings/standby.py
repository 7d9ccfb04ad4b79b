"""Callers that stand by: whoever frees an instance calls them in, nobody is lost, and 20 ms later they enter like everybody."""

from __future__ import annotations

import threading
import time

from shared import Book, Item, Work, ready, settled, works

from headrace import Pipeline
from headrace.errors import ClosedError
from headrace_testing.interleavings import check, settle, sleep

gate = threading.Event()
NEVER_S = 1000
"""A request that waited for the look for circles would be seen as a hang."""


class Brief(Work):
    """Takes 50 us: a look at the clock costs one, a sleep would cost a millisecond. Items up to 0 wait for the gate."""

    def forward(self, batch):
        if batch[0]["data"].n <= 0:
            gate.wait()
        until = time.perf_counter() + 50e-6
        while time.perf_counter() < until:
            pass
        return super().forward(batch)


def _of(make=Brief, most=1, **keys):
    return ready(works("a", make, most=most, deadlock_after_s=NEVER_S, **keys))


BRIEF = _of()
BRIEF_TWO = _of(instance_num=2)
LONG = _of(Work, ms=1, most=2, max=2)


def _ask_all(book, pipe, items, how="call", may=()):
    for item in items:
        book.ask(pipe, item, ("a", item), may, how=how)


def _callers(book, pipe, each, *hows, may=()):
    """Start a thread for each way to ask, which asks again and again."""
    for i, how in enumerate(hows):
        items = [Item(n) for n in range(1 + i * each, 1 + (i + 1) * each)]
        book.thread(_ask_all, book, pipe, items, how, may)


def _all_held(book, pipe, count=1, may=()):
    """Have all instances run an item that waits for the gate."""
    gate.clear()
    for n in range(count):
        book.thread(_ask_all, book, pipe, [Item(-n)], "call", may)
        settle(0.0)


# Brief backends.


def _brief(pipe):
    """Return a pipeline, which knows now how brief its backend is."""
    pipe({"data": Item(99)})
    return pipe


def stands_by():
    """Who finds the instance busy stands by, in no queue, and is in the queue 20 ms later."""
    book = Book()
    with _brief(Pipeline(BRIEF)) as pipe:
        waiting = lambda: pipe.stats()["nodes"]["a"]["waiting"]  # noqa: E731
        _all_held(book, pipe)
        begun = time.monotonic()
        book.thread(_ask_all, book, pipe, [Item(1)])
        settle(0.0)
        found = waiting()
        check(not found or time.monotonic() - begun > 0.02, "a caller waits in the queue at once")
        settle(0.03)
        check(waiting() == 1, "it is not in the queue after 30 ms")
        gate.set()
        book.join()
        settled(pipe, 3)


def _come_again(config):
    book, begun = Book(), time.monotonic()
    with _brief(Pipeline(config)) as pipe:
        _callers(book, pipe, 6, "call", "call", "submit", "call")
        book.join()
        # Who comes back at once may be waited for in vain as its thread ends, and time may jump once.
        took = time.monotonic() - begun
        check(took < 0.09, lambda: f"it took {took} s")
        settled(pipe, 25)


def one_instance():
    """Callers that come again and again, beside one that submits."""
    _come_again(BRIEF)


def two_instances():
    """The same on two instances."""
    _come_again(BRIEF_TWO)


def burst():
    """Threads that each call once: none is left standing while the instance is idle."""
    book = Book()
    with _brief(Pipeline(BRIEF)) as pipe:
        for first in (1, 5):
            for n in range(first, first + 4):
                book.thread(_ask_all, book, pipe, [Item(n)])
            settle(0.0)
            check(len(book.outcomes) == first + 3, lambda: f"answered are {book.outcomes}")
        settled(pipe, 9)


def leaves():
    """The 20 ms of two callers end as one is called in: the next ones do not wait for who has left."""
    book = Book()
    with _brief(Pipeline(BRIEF)) as pipe:
        _all_held(book, pipe)
        _callers(book, pipe, 1, "call", "call")
        sleep(0.0195)
        gate.set()
        book.join()
        for first in (3, 5):
            sleep(0.002)
            for n in (first, first + 1):
                book.thread(_ask_all, book, pipe, [Item(n)])
            settle(0.0)
            check(len(book.outcomes) == first + 2, lambda: f"answered are {book.outcomes}")
        settled(pipe, 8)


def _closed(pipe, instances, *, drain):
    book = Book()
    _all_held(book, pipe, instances)
    _callers(book, pipe, 2, "call", "call", "submit", "call", may=(ClosedError,))
    settle(0.0)
    book.thread(pipe.close, drain=drain)
    gate.set()
    book.join()
    check(len(book.outcomes) == 8 + instances, lambda: f"ended are {book.outcomes}")


def drained():
    """A close that drains, among callers that stand by: each is answered or refused."""
    _closed(_brief(Pipeline(BRIEF)), 1, drain=True)


def refused():
    """A close that does not drain, on two instances."""
    _closed(_brief(Pipeline(BRIEF_TWO)), 2, drain=False)


def swapped():
    """A new pipeline takes the place of one that is drained and closed under its callers."""
    book, pipes = Book(), [_brief(Pipeline(BRIEF))]

    def again(first):
        for n in range(first, first + 3):
            item = Item(n)
            book.ask(pipes[0], item, ("a", item), (ClosedError,))

    _all_held(book, pipes[0])
    for first in (1, 4, 7):
        book.thread(again, first)
    old, pipes[0] = pipes[0], _brief(Pipeline(BRIEF))
    gate.set()
    old.close()
    book.join()
    check(len(book.outcomes) == 10, lambda: f"ended are {book.outcomes}")
    settled(pipes[0])
    pipes[0].close()


# Long batches.


def returning():
    """Few more callers than a batch holds, most of which do not come back: nobody waits for these for ever."""
    book = Book()
    with Pipeline(LONG) as pipe:
        for n in range(1, 7):
            book.thread(_ask_all, book, pipe, [Item(n)] if n < 6 else [Item(6), Item(7)])
        book.join()
        settled(pipe, 7)
