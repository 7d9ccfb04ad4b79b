"""Instances: with threads of their own, away and back, watched by probes."""

from __future__ import annotations

import threading

from composed import CHAIN, Work, loaded
from shared import Book, Item, settled, through_chain

import headrace
from headrace.hookspecs import attached
from headrace_testing.interleavings import check


class Owned(Work):
    def init(self, options, context):
        super().init(options, context)
        self.thread = threading.get_ident()

    def forward(self, batch):
        check(self.thread == threading.get_ident(), "forward in another thread")
        return super().forward(batch)

    def close(self):
        check(self.thread == threading.get_ident(), "close in another thread")
        closed.append(self.thread)


closed = []
headrace.register("Owned", Owned)
OWN = loaded(
    {
        "a": {
            "backend": "BackgroundThread[Owned(tag=a)]",
            "max": 2,
            "instance_num": 2,
            "next": "b",
        },
        "b": {"backend": "Work(tag=b)"},
    }
)


def own_thread():
    """Init, every forward and close of an instance happen in one thread of its own."""
    closed.clear()  # `loaded` has closed some
    book = Book()
    items = [Item(n, bad="a" if n == 1 else "") for n in range(5)]
    want = through_chain
    with headrace.pipe(OWN) as pipe:
        book.thread(book.ask, pipe, items[0], want(items[0]))
        book.thread(book.ask, pipe, items[1], want(items[1]), how="submit")
        book.thread(book.ask, pipe, items[2], want(items[2]), timeout=20)
        book.thread(book.ask_list, pipe, items[3:], want)
        book.join()
        settled(pipe)
    check(len(closed) == 2, f"closed {len(closed)} of 2")


class Leaves(Work):
    def init(self, options, context):
        super().init(options, context)
        contexts.append(context)


contexts = []
headrace.register("Leaves", Leaves)
AWAY = loaded(
    {
        "a": {"backend": "Leaves(tag=a)", "max": 2, "instance_num": 2, "next": "b"},
        "b": {"backend": "Work(tag=b)"},
    }
)


def away_and_back():
    """Backends say from other threads that they are away, and back: what waits is answered, by one of them."""
    contexts.clear()  # `loaded` has made some
    book = Book()
    items = [Item(n) for n in range(5)]
    want = through_chain

    def leave(context):
        context.health.away()
        context.health.back()

    with headrace.pipe(AWAY) as pipe:
        book.thread(book.ask, pipe, items[0], want(items[0]))
        book.thread(leave, contexts[0])
        book.thread(leave, contexts[1])
        book.thread(book.ask, pipe, items[1], want(items[1]), how="submit")
        book.thread(book.ask_list, pipe, items[2:], want)
        book.join()
        check(pipe.ready, "both are back, and the pipeline is not ready")
        settled(pipe, 5)


class Probe:
    reentrant = True

    def __init__(self):
        self.done = []

    def request_done(self, *args):
        self.done.append(args)

    def batch_ran(self, record):
        pass


def probes():
    """Probes come and go while requests run: each request is told at most once, every answer is right."""
    book = Book()
    items = [Item(n) for n in range(4)]
    want = through_chain

    def watch(pipe):
        probe = Probe()
        with attached(pipe, probe):
            book.ask(pipe, items[0], want(items[0]))
        check(len(probe.done) <= 8, f"{len(probe.done)} ends of 4 requests at 2 nodes")

    with headrace.pipe(CHAIN) as pipe:
        book.thread(watch, pipe)
        book.thread(book.ask, pipe, items[1], want(items[1]))
        book.thread(book.ask_list, pipe, items[2:], want)
        book.join()
        settled(pipe, 4)


class Comes(Work):
    """Is away as it is built, and comes back in a thread of its own."""

    def init(self, options, context):
        super().init(options, context)
        context.health.away()
        threading.Thread(target=context.health.back, name="back", daemon=True).start()


headrace.register("Comes", Comes)
COMES = loaded({"backend": "Comes(tag=a)"})


def comes():
    """An instance that comes back as its node is made serves one batch at a time."""
    book = Book()
    with headrace.pipe(COMES) as pipe:
        for item in [Item(n) for n in range(3)]:
            book.thread(book.ask, pipe, item, ("a", item), how="submit" if item.n else "call")
        book.join()
        settled(pipe)


class Widest(Leaves):
    wide = True

    @classmethod
    def auto_instances(cls, options, device, threads):
        return threads

    def forward(self, batch):
        ran.append(self.c.threads)
        return super().forward(batch)


ran = []
headrace.register("Widest", Widest)
WIDE = loaded(
    {
        "global": {"threads": 4},
        "a": {"backend": "Widest(tag=a)", "instance_num": "auto", "next": "b"},
        "b": {"backend": "Work(tag=b)"},
    }
)


def wide():
    """Beside an instance with all threads others leave and come back: all is answered, and alone a request has all threads."""
    contexts.clear()
    book = Book()
    items = [Item(n, bad="a" if n == 2 else "") for n in range(6)]
    want = through_chain

    def leave(context):
        context.health.away()
        context.health.back()

    with headrace.pipe(WIDE) as pipe:
        check([one.threads for one in contexts] == [1, 1, 4], "two narrow ones and a wide one")
        book.thread(book.ask, pipe, items[0], want(items[0]))
        book.thread(book.ask, pipe, items[1], want(items[1]), how="submit")
        book.thread(book.ask, pipe, items[2], want(items[2]))
        book.thread(leave, contexts[0])
        book.thread(leave, contexts[2])
        book.thread(book.ask_list, pipe, items[3:], want)
        book.join()
        settled(pipe)
        last = Item(7)
        book.ask(pipe, last, want(last))
        check(ran[-1] == 4, "the node is idle, and the wide instance is not used")
