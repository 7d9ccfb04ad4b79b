"""Closing: requests that are open are answered or refused, each backend is closed once, and nobody waits for ever."""

from __future__ import annotations

import time
from contextlib import suppress

from composed import KEPT_CHAIN, Work, loaded
from shared import Book, Item, through_chain

import headrace
from headrace.errors import ClosedError
from headrace_testing.interleavings import check, settle

CLOSED = (ClosedError,)


def _closed_while_requests_come(drain):
    book = Book()
    keeps = {1: {"keep": "b"}, 2: {"slow": "a"}}
    items = [Item(n, **keeps.get(n, {})) for n in range(5)]
    want = through_chain
    pipe = headrace.pipe(KEPT_CHAIN)
    book.thread(book.ask, pipe, items[0], want(items[0]), CLOSED)
    book.thread(book.ask, pipe, items[1], want(items[1]), CLOSED, how="submit")
    book.thread(pipe.close, drain=drain, timeout=5)
    book.thread(book.ask, pipe, items[2], want(items[2]), CLOSED, timeout=20)
    book.thread(book.ask_list, pipe, items[3:], want, CLOSED)
    book.thread(pipe.close)
    book.join()
    for name, node in pipe.stats()["nodes"].items():
        check(node["waiting"] == 0, f"{node['waiting']} wait at {name}")


def drained():
    """``drain=True``, from two threads, while requests come, wait and are kept: each is answered or refused."""
    _closed_while_requests_come(drain=True)


def at_once():
    """``drain=False``, from two threads, while requests come, wait and are kept: each is answered or refused."""
    _closed_while_requests_come(drain=False)


class Closes(Work):
    def init(self, options, context):
        super().init(options, context)
        made.append(self)

    def close(self):
        closed.append(self)


made, closed = [], []
headrace.register("Closes", Closes)
ALL = loaded(
    {
        "a": {"backend": "Closes(tag=a)", "max": 2, "next": "b"},
        "b": {"backend": "BackgroundThread[Closes(tag=b)]"},
    }
)
OWN = loaded({"a": {"backend": "BackgroundThread[Closes(tag=a)]", "instance_num": 2}})


def _all_closed():
    check(
        sorted(map(id, made)) == sorted(map(id, closed)), f"{len(made)} made, {len(closed)} closed"
    )


def _close_at_once(pipe):
    began_s = time.monotonic()
    pipe.close(timeout=30)
    check(time.monotonic() - began_s < 20, f"close took {time.monotonic() - began_s} s")
    state = pipe.stats()["state"]
    check(state == "closed", f"close has returned, and the pipeline is {state}")


def twice():
    """Two threads close an idle pipeline: both return before their timeout, and each backend is closed once."""
    book = Book()
    pipe = headrace.pipe(ALL)
    book.thread(_close_at_once, pipe)
    book.thread(_close_at_once, pipe)
    book.join()
    settle()
    _all_closed()


def own_threads():
    """Of backends that have threads of their own: close returns before its timeout, and each is closed once."""
    book = Book()
    pipe = headrace.pipe(OWN)
    book.thread(_close_at_once, pipe)
    book.join()
    settle()
    _all_closed()


def outcomes_first():
    """A draining close returns once every request that was accepted has its outcome."""
    futures, book = [], Book()
    items = [Item(n, slow="b" if n == 1 else "") for n in range(4)]
    pipe = headrace.pipe(KEPT_CHAIN)

    def submits(item):
        with suppress(ClosedError):
            futures.append(pipe.submit({"data": item}))

    def close():
        pipe.close(timeout=30)
        left = [one for one in accepted if not one.done()]
        check(not left, f"{len(left)} futures have no outcome, and close has returned")

    for item in items[:2]:
        submits(item)
    accepted = [*futures]
    book.thread(submits, items[2])
    book.thread(close)
    book.thread(submits, items[3])
    book.join()
    for future in futures:
        try:
            future.result()
        except ClosedError:
            check(future not in accepted, "refused, and it came before the close")


def dropped():
    """The last reference to a pipeline is dropped while requests are open: they are answered, the backends closed once."""
    book = Book()
    items = [Item(n) for n in range(3)]
    pipe = headrace.pipe(ALL)
    requests = [{"data": item} for item in items]
    futures = [pipe.submit(request) for request in requests[:2]]
    book.thread(pipe, requests[2])
    del pipe
    for request, future, item in zip(requests, futures, items, strict=False):
        book.judge(request, item, through_chain(item), (), future.result)
    del future, futures
    book.join()
    book.threads.clear()
    settle(40)
    _all_closed()
