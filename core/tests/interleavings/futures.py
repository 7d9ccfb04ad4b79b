"""Futures: cancelled while their request waits, awaited by several threads."""

from __future__ import annotations

import concurrent.futures
from concurrent.futures import CancelledError
from contextlib import suppress

from shared import (
    CHAIN,
    TO_SINK,
    Book,
    Item,
    diamond,
    ready,
    settled,
    through_chain,
    through_diamond,
    works,
)

from headrace import Pipeline
from headrace.errors import BackendError, DeadlineExceededError
from headrace.futures import RelayFuture
from headrace_testing.interleavings import check, sleep

ONE = ready(works("a", most=2, max=2))
CANCELLED = diamond(max=4, instance_num=2, limits={"batching_timeout_ms": 2})


def cancel_one():
    """At one node, from several threads: True only while queued, and the others go on."""
    book = Book()
    items = [Item(n) for n in range(3)]
    with Pipeline(ONE) as pipe:
        futures = [(pipe.submit(r), r) for r in ({"data": item} for item in items)]

        def cancel(n):
            future, request = futures[n]
            told = future.cancel()
            try:
                future.result()
                done = not told and request["result"] == ("a", items[n])
                check(done, f"cancel gave {told}, and there is {request}")
            except CancelledError:
                check(told or future.cancelled(), "cancelled by nobody")
                check("result" not in request, f"cancelled, and there is {request}")

        for n in (0, 1, 1, 2):
            book.thread(cancel, n)
        book.join()
        settled(pipe, 3)


def cancel_relays():
    """Futures that follow those of a pipeline, now or once another thread says so: as the pipeline's own."""
    book = Book()
    items = [Item(n) for n in range(3)]
    with Pipeline(ONE) as pipe:
        requests = [{"data": item} for item in items]
        futures, relays = [pipe.submit(r) for r in requests], [RelayFuture() for _ in items]

        def wait(n):
            try:
                check(relays[n].result()["result"] == ("a", items[n]), f"there is {requests[n]}")
            except CancelledError:
                check(relays[n].cancelled(), "cancelled by nobody")

        def cancel(n):
            told = relays[n].cancel()
            check(relays[n].cancelled() or not told, f"cancel gave {told}")

        relays[0].follow(futures[0])
        for n in (1, 2):
            book.thread(relays[n].follow, futures[n])
        for n in (0, 1, 1):
            book.thread(cancel, n)
        for n in (0, 1, 2):
            book.thread(wait, n)
        book.join()
        for future, relay in zip(futures, relays, strict=True):
            concurrent.futures.wait([future])
            check(relay.cancelled() or relay.done(), "nobody was told")
        settled(pipe, 3)


def cancel_in_diamond():
    """Beside a deadline and a failing branch: True only where no outcome comes any more, and no hang."""
    book = Book()
    items = [Item(0, slow="b"), Item(1), Item(2, bad="c")]

    def cancelled(pipe, item):
        request = {"data": item}
        future = pipe.submit(request)
        if future.cancel():
            check(future.cancelled() and "result" not in request, f"{request} was cancelled")
            book.note(item.n, "cancelled")
            try:
                future.result()
            except CancelledError:
                return
        book.judge(request, item, through_diamond(item), (), future.result)

    late = (DeadlineExceededError,)
    with Pipeline(CANCELLED) as pipe:
        book.thread(book.ask, pipe, items[0], through_diamond(items[0]), how="submit")
        book.thread(cancelled, pipe, items[1])
        book.thread(book.ask, pipe, items[2], None, late, how="submit", timeout=0.002)
        book.join()
        settled(pipe)


WAITS = {"max": 8, "instance_num": 2, "limits": {"batching_timeout_ms": 150}}
THREE = ready(
    works("a", next=["b", "c", "e"]),
    *[works(name, ms=400, next=["d"], **WAITS) for name in "bc"],
    works("e", ms=100, instance_num=3, next=["d"]),
    works("d", links={"map": {**TO_SINK, "e": {"result": "y"}}}),
)


def cancel_at_two_nodes():
    """Of a request that waits at two nodes, while another one that waits there is late and fails at a third."""
    book = Book()
    items = [Item(0), Item(1), Item(2, bad="e")]
    with Pipeline(THREE) as pipe:
        first, second = pipe.submit({"data": items[0]}), None
        sleep(0.01)
        second = pipe.submit({"data": items[1]})
        third = pipe.submit({"data": items[2]}, timeout=0.1)
        book.thread(lambda: (sleep(0.1), second.cancel()))
        wants = ((), (CancelledError,), (DeadlineExceededError, BackendError))
        for future, want in zip((first, second, third), wants, strict=True):
            with suppress(*want):
                future.result()
        book.join()
        settled(pipe)


BATCHED = ready(works("a", max=2, next=["b"]), works("b", most=2, max=2))


def waited_for():
    """By ``wait``, ``as_completed`` and callbacks of several threads: each callback once, each answer its own."""
    book, told = Book(), []
    items = [Item(n) for n in range(4)]
    with Pipeline(BATCHED) as pipe:
        futures = pipe.submit([{"data": item} for item in items[:3]])
        for future in futures:
            future.add_done_callback(told.append)

        def by_wait():
            done, _ = concurrent.futures.wait(futures)
            check(len(done) == 3, f"done {done}")

        def by_turns():
            check(len(list(concurrent.futures.as_completed(futures))) == 3, "as_completed")

        book.thread(by_wait)
        book.thread(by_turns)
        book.thread(book.ask, pipe, items[3], through_chain(items[3]))
        for future, item in zip(futures, items, strict=False):
            check(future.result()["result"] == through_chain(item), f"{future.result()}")
        book.join()
        settled(pipe, 4)
        check(sorted(map(id, told)) == sorted(map(id, futures)), f"callbacks: {len(told)} of 3")


def cancel_while_waited_for():
    """While other threads wait for it, and more are submitted: they are told, and nobody hangs."""
    book = Book()
    items = [Item(n, slow="a") for n in range(3)]
    with Pipeline(CHAIN) as pipe:
        futures = [pipe.submit({"data": item}) for item in items]

        def waits(future, item):
            try:
                check(future.result()["result"] == through_chain(item), "another's answer")
            except CancelledError:
                check(future.cancelled(), "cancelled by nobody")

        for future, item in zip(futures, items, strict=True):
            book.thread(waits, future, item)
        for future in futures[1:]:
            book.thread(future.cancel)
        book.join()
        settled(pipe, 3) if not any(one.cancelled() for one in futures) else settled(pipe)
