"""Callers that find all instances busy stand in line, where instances have threads of their own and where callers run requests."""

from __future__ import annotations

import threading
import time

from shared import Book, Item, Work, loaded, settled

import headrace
from headrace.errors import BackendError, ClosedError, DeadlineExceededError
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
OWN = loaded(
    {
        "global": {"deadlock_after_s": NEVER_S},
        "main": {"backend": "OwnWork(most=1)", "max": 1},
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
    """Two instances, of which one may come free while a caller takes its place in line."""
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


def _line(ms, most=1, instances=1):
    return loaded(
        {
            "global": {"deadlock_after_s": NEVER_S},
            "main": {
                "backend": f"Work(most={most},ms={ms})",
                "max": most,
                "instance_num": instances,
            },
        }
    )


SHORT, SHORT_TWO, MEDIUM, LONG = _line(0), _line(0, instances=2), _line(0.2), _line(2)
BATCHES, SHORT_BATCHES = _line(0.2, most=2), _line(0, most=2)


def _crowd(config, callers=4, each=3):
    book = Book()
    with headrace.pipe(config) as pipe:
        for first in range(0, callers * each, each):
            items = [Item(n, bad="a" if n == 4 else "") for n in range(first, first + each)]
            book.thread(_ask_all, book, pipe, items)
        book.join()
        settled(pipe, callers * each)


def short():
    """One instance that is fast: who has it may take it again, for a while, and nobody is forgotten as the last one leaves."""
    _crowd(SHORT)


def short_two():
    """Two that are fast, of which one may come free while nobody is on the way."""
    _crowd(SHORT_TWO)


def medium():
    """One that takes a while: who has it runs what the others want as well."""
    _crowd(MEDIUM)


def long():
    """One that takes long: it is handed from one caller to the next."""
    _crowd(LONG, callers=3, each=2)


def pair():
    """Two callers that come once: who comes as the instance is freed is seen."""
    _crowd(SHORT, callers=2, each=1)


def trio():
    """Three that come once, and run as batches: who comes as the last of them is over is seen."""
    _crowd(SHORT_BATCHES, callers=3, each=1)


def own_trio():
    """Three that come once before an own thread: who comes as it ends is seen."""
    _crowd(OWN, callers=3, each=1)


def batches():
    """What stands in line is one batch, and one of it fails alone."""
    _crowd(BATCHES)


def short_closing():
    """A close among callers in line: each is answered or refused, and none runs once all is closed."""
    book = Book()
    pipe = headrace.pipe(SHORT_TWO)
    for first in range(0, 8, 2):
        book.thread(_ask_all, book, pipe, [Item(first), Item(first + 1)], "call", (ClosedError,))
    pipe.close()
    book.join()


def handing_closing():
    """A close while the instance is handed from one caller to the next, which waits for nobody who does not run."""
    book = Book()
    pipe = headrace.pipe(SHORT)
    for n in range(3):
        book.thread(_ask_all, book, pipe, [Item(n)], "call", (ClosedError,))
    began = time.monotonic()
    pipe.close()
    check(time.monotonic() - began < 5, "close took long")
    book.join()


def closing_now():
    """A close that waits for nobody."""
    book = Book()
    pipe = headrace.pipe(BATCHES)
    for first in range(0, 8, 2):
        book.thread(_ask_all, book, pipe, [Item(first), Item(first + 1)], "call", (ClosedError,))
    pipe.close(drain=False, timeout=0)
    book.join()
    settle(1)


CHAIN = loaded(
    {
        "a": {"backend": "Work(tag=a)", "queue_size": 3, "next": "b"},
        "b": {"backend": "Work(tag=b,ms=0.2)"},
    }
)


def chain():
    """Callers stand in line at either node of a chain, where the bound of the first one counts them."""
    book = Book()
    with headrace.pipe(CHAIN) as pipe:
        for n in range(0, 6, 2):
            items = [Item(n), Item(n + 1, bad="b" if n == 2 else "")]
            for_each = lambda items=items: [  # noqa: E731
                book.ask(pipe, one, ("b", ("a", one))) for one in items
            ]
            book.thread(for_each)
        book.join()
        settled(pipe, 6)


def mixed():
    """Callers in line beside what is submitted, lists, deadlines and priorities: all have their own outcome."""
    book, late = Book(), (DeadlineExceededError,)
    with headrace.pipe(BATCHES) as pipe:
        items = [Item(n, bad="a" if n == 3 else "") for n in range(9)]
        book.thread(_ask_all, book, pipe, items[:2])
        book.thread(_ask_all, book, pipe, items[2:4])
        book.thread(book.ask, pipe, items[4], ("a", items[4]), how="submit")
        book.thread(book.ask, pipe, items[5], ("a", items[5]), late, timeout=0.0005)
        book.thread(book.ask, pipe, items[6], ("a", items[6]), priority=1)
        book.thread(book.ask_list, pipe, items[7:], lambda item: ("a", item))
        book.join()
        settled(pipe, 9)


def mixed_alone():
    """The same where one request runs at a time, and who has the instance may take it again."""
    book = Book()
    with headrace.pipe(SHORT) as pipe:
        items = [Item(n) for n in range(8)]
        book.thread(_ask_all, book, pipe, items[:3])
        book.thread(_ask_all, book, pipe, items[3:5])
        book.thread(book.ask, pipe, items[5], ("a", items[5]), how="submit")
        book.thread(book.ask, pipe, items[6], ("a", items[6]), priority=-1)
        book.thread(book.ask, pipe, items[7], ("a", items[7]), timeout=60)
        book.join()
        settled(pipe, 8)


class Turns(Work):
    """Keeps the order in which requests run."""

    def forward(self, batch):
        order.extend(item.n for item in (r["data"] for r in batch))
        return super().forward(batch)


order = []
headrace.register("Turns", Turns)
FAIR = loaded(
    {"global": {"deadlock_after_s": NEVER_S}, "main": {"backend": "Turns(ms=1)", "max": 1}}
)


def fair():
    """Who waits longest is next: each of three callers has had its first turn before one has had three."""
    order.clear()
    book = Book()
    with headrace.pipe(FAIR) as pipe:
        for caller in range(3):
            items = [Item(10 * caller + n) for n in range(4)]
            book.thread(_ask_all, book, pipe, items)
        book.join()
    came = [order.index(10 * caller) for caller in range(3)]
    check(max(came) <= 6, f"they ran in the order {order}")
