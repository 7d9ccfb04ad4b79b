"""Coroutines: calls and streams, cancelled and late, beside threads."""

from __future__ import annotations

import asyncio
import threading

from composed import CHAIN, loaded
from shared import Book, Item, settled, through_chain

import headrace
from headrace.errors import BackendError, DeadlineExceededError
from headrace_testing.interleavings import check, run_async, settle


async def _all(coroutines):
    """Run coroutines, of which the last one is cancelled."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    await asyncio.sleep(0)
    tasks[-1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    allowed = (type(None), asyncio.CancelledError)
    check(all(isinstance(one, allowed) for one in done), f"outcomes {done}")


def calls():
    """Of two loops, one cancelled, one with a deadline, beside a blocking caller."""
    book = Book()
    items = [Item(n, slow="b" if n == 1 else "") for n in range(6)]

    async def one(pipe, item, **terms):
        request = {"data": item}
        try:
            answer = await pipe.call_async(request, **terms)
            right = answer is request and request["result"] == through_chain(item)
            check(right, f"{item}: {request}")
        except DeadlineExceededError:
            check("timeout" in terms, "late without a deadline")

    async def many(pipe, some):
        await _all(one(pipe, item, **({"timeout": 0.001} if item.n == 1 else {})) for item in some)

    with headrace.pipe(CHAIN) as pipe:
        book.thread(run_async, many(pipe, items[:3]))
        book.thread(run_async, many(pipe, items[3:5]))
        book.thread(book.ask, pipe, items[5], through_chain(items[5]))
        book.join()
        settled(pipe)


class KeepsAsync(headrace.Backend):
    keeps = True

    def init(self, options, context):
        self.c = context

    def forward(self, batch):
        (r,) = batch
        entered.set()
        finish = threading.Thread(
            target=self.c.request.finish, args=(self.c.request.keep(r), "late"), daemon=True
        )
        finish.start()
        return [headrace.PENDING]


entered = threading.Event()
headrace.register("KeepsAsync", KeepsAsync)
KEPT = loaded({"backend": "KeepsAsync"})


def cancelled_while_kept():
    """A coroutine is cancelled whose request is PENDING: told that nothing runs, it has its dict alone."""
    with headrace.pipe(KEPT) as pipe:
        request, mine = {"data": 1}, []

        async def main():
            task = asyncio.ensure_future(pipe.call_async(request))
            while not entered.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError as error:
                if not error.abandoned:
                    check("result" not in request, "not abandoned, and there is a result at once")
                    mine.append(request)

        loop = threading.Thread(target=run_async, args=(main(),), name="loop")
        loop.start()
        loop.join()
        settle()
        free = not mine or "result" not in request
        check(free, f"the dict was the caller's again, and has {request.get('result')}")
        waiting = pipe.stats()["nodes"]["main"]["waiting"]
        check(waiting == 0, f"still waiting: {waiting}")


class EmitsThree(headrace.Backend):
    max = 2

    def init(self, options, context):
        self.c = context

    def forward(self, batch):
        for r in batch:
            for k in range(3):
                self.c.request.emit(self.c.request.keep(r), (r["data"].n, k))
            r["result"] = ("a", r["data"])


headrace.register("EmitsThree", EmitsThree)
STREAMS = loaded(
    {"a": {"backend": "EmitsThree", "max": 2, "next": "b"}, "b": {"backend": "Work(tag=b)"}}
)


def streams():
    """The parts in order, then the dict; one leaves early, one is cancelled, beside a blocking reader."""
    book = Book()
    items = [Item(n) for n in range(4)]

    async def read(pipe, item):
        request, parts = {"data": item}, []
        async for part in pipe.stream_async(request):
            parts.append(part)
            if item.n == 1:
                return
        right = parts == [(item.n, 0), (item.n, 1), (item.n, 2), request]
        check(right, f"parts of {item}: {parts}")

    def blocking(pipe):
        check(len([*pipe.stream({"data": items[3]})]) == 4, "parts of a blocking reader")

    with headrace.pipe(STREAMS) as pipe:
        book.thread(run_async, _all(read(pipe, item) for item in items[:3]))
        book.thread(blocking, pipe)
        book.join()
        settled(pipe)


class Crosses(headrace.Backend):
    """Calls the other one of two pipelines in an event loop of its own, once both run."""

    def init(self, options, context):
        pass

    def forward(self, batch):
        (r,) = batch
        if r["data"] < 2:
            inside.append(r["data"])
            if len(inside) == 2:
                both.set()
            both.wait()
            other = crossed[1 - r["data"]]
            run_async(other.call_async({"data": 2}))
        r["result"] = r["data"]


crossed, inside, both = [], [], threading.Event()
headrace.register("Crosses", Crosses)
CROSSES = loaded({"global": {"deadlock_after_s": 1}, "main": {"backend": "Crosses"}})


def circle():
    """Backends of two pipelines that await each other in event loops: the circle is found, and one of them is freed."""
    inside.clear()
    both.clear()
    freed = []

    def calls(pipe, n):
        try:
            pipe({"data": n})
        except BackendError as error:
            freed.append(error)

    with headrace.pipe(CROSSES) as one, headrace.pipe(CROSSES) as other:
        crossed[:] = [one, other]
        threads = [threading.Thread(target=calls, args=(crossed[n], n)) for n in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    check(len(freed) == 1, f"failed: {freed}")
