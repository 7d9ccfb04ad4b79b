"""Callers that stand by at backends with threads of their own, and at instances that are lost."""

from __future__ import annotations

from composed import Work, loaded
from shared import Book, Item, settled
from standby import NEVER_S, Brief, _all_held, _ask_all, _brief, _callers, _closed, gate

import headrace
from headrace.errors import BackendError, InstanceLostError
from headrace_testing.interleavings import check, settle, sleep


class OwnWork(Work):
    owns_thread = True

    def forward(self, batch):
        if batch[0]["data"].n <= 0:
            gate.wait()
        return super().forward(batch)


class Device(OwnWork):
    """Launches at once, and works for a millisecond."""

    def init(self, options, context):
        super().init(options, context)
        context.batch.at_end(lambda: sleep(1e-3))


class Dies(Brief, Work):
    def outcome(self, r, item):
        if item.n in (2, 4):
            raise InstanceLostError("gone")
        return super().outcome(r, item)


headrace.register("OwnWork", OwnWork)
headrace.register("Device", Device)
headrace.register("Dies", Dies)


def _of(backend, **keys):
    main = {"backend": backend, "max": 1, **keys}
    return loaded({"global": {"deadlock_after_s": NEVER_S}, "a": main})


DIES = _of("Dies(most=1)", instance_num=2)
OWN = _of("OwnWork(most=2,ms=1)", max=2)
DEVICE = _of("Device(most=2)", max=2)
OWN_TWO = _of("OwnWork(most=2)", max=2, instance_num=2)


def lost():
    """Two instances are lost one after the other: each request is answered or fails with them."""
    book = Book()
    with _brief(headrace.pipe(DIES)) as pipe:
        _all_held(book, pipe, 2, (InstanceLostError,))
        _callers(book, pipe, 2, "call", "call", "call", may=(InstanceLostError,))
        gate.set()
        book.join()
        settled(pipe, 9)


# Instances with threads of their own.


def callers():
    """Callers that come again and again, one of whose requests fails: no request stays behind, whoever ends a batch."""
    book = Book()
    with headrace.pipe(OWN) as pipe:
        for first in range(1, 13, 3):
            items = [Item(n, bad="a" if n == 5 else "") for n in range(first, first + 3)]
            book.thread(_ask_all, book, pipe, items, "submit" if first == 4 else "call")
        book.join()
        settled(pipe, 12)


def put_off():
    """Callers of a batch are woken while the device works on the next one, or as its launch hangs: nobody sleeps on."""
    book = Book()
    gate.clear()
    with headrace.pipe(DEVICE) as pipe:
        for first in range(1, 13, 3):
            items = [Item(n, bad="a" if n == 5 else "") for n in range(first, first + 3)]
            book.thread(_ask_all, book, pipe, items)
        book.join()
        book.thread(_ask_all, book, pipe, [Item(0)])
        settle(1)
        gate.set()
        book.join()
        settled(pipe, 13)


def instances():
    """Two instances, of which one may come free while a caller begins to stand by."""
    book = Book()
    with headrace.pipe(OWN_TWO) as pipe:
        _callers(book, pipe, 2, *["call"] * 6)
        book.join()
        settled(pipe, 12)


def closing():
    """A close that does not drain, among them: each is answered or refused."""
    _closed(_brief(headrace.pipe(OWN)), 1, drain=False)


def let_in():
    """Who stood by before a close that drains is answered."""
    book = Book()
    pipe = headrace.pipe(OWN)
    _all_held(book, pipe)
    _callers(book, pipe, 1, "call", "call")
    settle(0.0)
    book.thread(pipe.close)
    settle(0.0)
    gate.set()
    book.join()
    check(len(book.outcomes) == 3, lambda: f"answered are {book.outcomes}")


BOUND = loaded({"main": {"backend": "OwnWork(most=1)", "max": 1, "queue_size": 2}})


def bound():
    """Two threads that submit while one batch runs: as many calls return as run, and as there is room for."""
    gate.clear()
    returned = []

    def sends(first):
        for n in range(first, first + 3):
            futures.append(pipe.submit({"data": Item(0)}))
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
        for item in [Item(n) for n in range(1, 5)]:
            book.thread(book.ask, pipe, item, ("a", item), (BackendError,))
        book.join()
    check(sorted(entered) == [1, 2, 3, 4], f"entered: {entered}")
