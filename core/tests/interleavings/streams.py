"""Answers in parts, from generators, from emit, and from threads of a backend."""

from __future__ import annotations

import threading
from contextlib import suppress

from composed import loaded
from shared import Book, Item, settled

import headrace
from headrace.errors import ClosedError, LimitError
from headrace_testing.interleavings import check


class Emits(headrace.Backend):
    max = 2

    def init(self, options, context):
        self.c = context

    def forward(self, batch):
        for r in batch:
            handle = self.c.request.keep(r)
            for k in range(3):
                self.c.request.emit(handle, (r["data"].n, k))
            r["result"] = ("a", r["data"])


headrace.register("Emits", Emits)
STREAM = loaded({"a": {"backend": "Emits", "max": 2, "next": "b"}, "b": {"backend": "Work(tag=b)"}})


def _read(pipe, item, want, *, leave=False, most=1024):
    request, parts = {"data": item}, []
    for part in pipe.stream(request, most=most):
        parts.append(part)
        if leave:
            return
    right = parts == [(item.n, 0), (item.n, 1), (item.n, 2), request]
    check(right, f"parts of {item}: {parts}")
    check(request["result"] == want, f"{request}")


def _read_until_closed(pipe, item, most=1024):
    parts, request = [], {"data": item}
    with suppress(ClosedError):
        parts.extend(pipe.stream(request, most=most))
    wanted = [(item.n, 0), (item.n, 1), (item.n, 2), request]
    check(parts == wanted[: len(parts)], f"parts of {item}: {parts}")


def readers():
    """The parts come in order, then the dict; beside a reader that leaves, and a plain call."""
    book = Book()
    items = [Item(n) for n in range(4)]

    def want(item):
        return ("b", ("a", item))

    with headrace.pipe(STREAM) as pipe:
        book.thread(_read, pipe, items[0], want(items[0]))
        book.thread(_read, pipe, items[1], want(items[1]), leave=True)
        book.thread(_read, pipe, items[2], want(items[2]))
        book.thread(book.ask, pipe, items[3], want(items[3]))
        book.join()
        settled(pipe)


def _read_by_three(config, each=None, most=1024):
    """Of three readers the second one leaves."""
    book = Book()
    items = [Item(n) for n in range(3)]
    with headrace.pipe(config) as pipe:
        for n, item in enumerate(items):
            book.thread(_read, pipe, item, ("a", item), leave=n == 1, most=most)
        book.join()
        settled(pipe, each)


class EmitsBeside(headrace.Backend):
    """Keeps its requests; a thread of its own emits their parts and ends them."""

    keeps = True

    max = 2

    def init(self, options, context):
        self.c = context

    def forward(self, batch):
        for r in batch:
            args = self.c.request.keep(r), r["data"]
            threading.Thread(target=self.emit, args=args, name="emitter", daemon=True).start()
        return [headrace.PENDING] * len(batch)

    def emit(self, handle, item):
        for k in range(3):
            self.c.request.emit(handle, (item.n, k))
        self.c.request.finish(handle, ("a", item))


headrace.register("EmitsBeside", EmitsBeside)
BESIDE = loaded({"backend": "EmitsBeside", "max": 2})


def from_a_thread():
    """A thread of the backend emits while ``forward`` ends: no part is lost, and none comes after the end."""
    _read_by_three(BESIDE, 3)


class EmitsHelped(Emits):
    """A helper thread emits the parts, and ``forward`` waits for it."""

    max = 1

    def forward(self, batch):
        (r,) = batch
        helper = threading.Thread(target=super().forward, args=(batch,), name="helper")
        helper.start()
        helper.join()
        check(r["result"] == ("a", r["data"]), "the helper has ended")


headrace.register("EmitsHelped", EmitsHelped)
HELPED = loaded({"backend": "EmitsHelped", "instance_num": 2})


def from_a_helper():
    """A helper thread emits while ``forward`` runs: its parts come in order, before the dict."""
    book = Book()
    items = [Item(n) for n in range(3)]
    with headrace.pipe(HELPED) as pipe:
        for item in items:
            book.thread(_read, pipe, item, ("a", item))
        book.join()
        settled(pipe, 3)


@headrace.register("Three")
def three(item):
    """Give three parts, and then the result."""
    for k in range(3):
        yield (item.n, k)
    return ("a", item)


GENERATOR = loaded({"backend": "Three", "instance_num": 2})


def from_a_generator():
    """A generator gives the parts: in order, then the dict; one reader leaves, and a plain call has the result alone."""
    book = Book()
    items = [Item(n) for n in range(4)]
    with headrace.pipe(GENERATOR) as pipe:
        book.thread(_read, pipe, items[0], ("a", items[0]))
        book.thread(_read, pipe, items[1], ("a", items[1]), leave=True)
        book.thread(_read, pipe, items[2], ("a", items[2]))
        book.thread(book.ask, pipe, items[3], ("a", items[3]))
        book.join()
        settled(pipe)


def a_generator_waits():
    """One part may wait: the generator waits for each reader, and for one that leaves no longer."""
    _read_by_three(GENERATOR, most=1)


def a_thread_waits():
    """One part may wait: the thread of a backend waits in emit for each reader, and for one that leaves no longer."""
    _read_by_three(BESIDE, 3, most=1)


LIMITED = loaded({"backend": "Emits", "max": 2})


def nobody_can_wait():
    """One part may wait, and forward emits: all parts come, or LimitError after those that came; never a part less."""
    book = Book()

    def read(pipe, item):
        request, parts, failed = {"data": item}, [], False
        try:
            parts.extend(pipe.stream(request, most=1))
        except LimitError:
            failed = True
        wanted = [(item.n, 0), (item.n, 1), (item.n, 2), request]
        check(parts == (wanted[: len(parts)] if failed else wanted), f"{item}: {parts}, {failed}")
        check(bool(parts), f"no part of {item} came")

    with headrace.pipe(LIMITED) as pipe:
        for n in range(3):
            book.thread(read, pipe, Item(n))
        book.join()
        settled(pipe)


def refused():
    """A function that raises at a part ends the request, and gets no later part."""
    with headrace.pipe(GENERATOR) as pipe:
        given = [[], []]
        takes = [
            lambda part, waits, parts=one: parts.append(part) or 1 // (2 - len(parts))
            for one in given
        ]
        futures = [pipe.submit({"data": Item(0)}, on_part=take) for take in takes]
        check(all(isinstance(one.exception(), ZeroDivisionError) for one in futures), "both fail")
        check(given == [[(0, 0), (0, 1)]] * 2, f"parts: {given}")


def closed_while_it_waits():
    """One part may wait, and the pipeline closes: who gives parts goes on, and each reader gets what came, in order."""
    book = Book()
    items = [Item(n) for n in range(2)]
    pipe = headrace.pipe(GENERATOR)

    book.thread(_read_until_closed, pipe, items[0], most=1)
    book.thread(_read_until_closed, pipe, items[1], most=1)
    book.thread(pipe.close, drain=False, timeout=5)
    book.join()


def closed_meanwhile():
    """The pipeline closes while streams are read: each ends, with the dict or with ClosedError, and parts are in order."""
    book = Book()
    items = [Item(n) for n in range(3)]
    pipe = headrace.pipe(STREAM)

    book.thread(_read_until_closed, pipe, items[0])
    book.thread(_read_until_closed, pipe, items[1])
    book.thread(pipe.close, drain=False, timeout=5)
    book.thread(_read_until_closed, pipe, items[2])
    book.join()
    for name, node in pipe.stats()["nodes"].items():
        check(node["waiting"] == 0, f"{node['waiting']} wait at {name}")
