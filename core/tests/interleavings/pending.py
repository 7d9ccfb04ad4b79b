"""Requests that a backend keeps as PENDING: finished, resumed, late, withdrawn, sent to other nodes."""

from __future__ import annotations

import threading
from contextlib import suppress

from composed import KEPT_CHAIN, loaded
from shared import Book, Item, settled, through_chain

import headrace
from headrace.errors import DeadlineExceededError
from headrace_testing.interleavings import check, settle

LATE = (DeadlineExceededError,)


class Keeps(headrace.Backend):
    keeps = True

    def init(self, options, context):
        self.c = context

    def forward(self, batch):
        (r,) = batch
        handle = self.c.request.keep(r)
        threading.Thread(target=self.finish, args=(handle, "other"), name="finisher").start()
        self.finish(handle, "first")
        return [headrace.PENDING]

    def finish(self, handle, outcome):
        if self.c.request.finish(handle, outcome):
            true.append(outcome)


true = []
headrace.register("Keeps", Keeps)
KEEPS = loaded({"backend": "Keeps"})


def finish():
    """Early, in ``forward``, and from another thread: only the first outcome counts, and only it is told True."""
    with headrace.pipe(KEEPS) as pipe:
        request = {"data": 1}
        caller = threading.Thread(target=pipe, args=(request,), name="caller")
        caller.start()
        caller.join()
        settle()
        check(len(true) == 1, f"finish gave True for {true}")
        same = request["result"] == true[0]
        check(same, f"finish gave True for {true}, and the caller has {request['result']}")


def resume():
    """At the first node of a chain, finished or resumed by other threads, beside a deadline: one outcome each."""
    book = Book()
    items = [Item(0, keep="a"), Item(1, keep="a", how="resume"), Item(2, keep="b"), Item(3)]

    def want(item):
        return [through_chain(item), ("b", ("late", item))]

    with headrace.pipe(KEPT_CHAIN) as pipe:
        for n, item in enumerate(items):
            terms = {"timeout": 0.5} if n == 2 else {}
            how = "submit" if n % 2 else "call"
            book.thread(book.ask, pipe, item, want(item), LATE, how=how, **terms)
        book.join()
        settled(pipe)


class Holds(headrace.Backend):
    keeps = True
    max = 2

    def init(self, options, context):
        self.c = context

    def forward(self, batch):
        for r in batch:
            n = r["data"].n
            asked.append(n)
            handle = self.c.request.keep(r)
            if not self.c.request.on_end(handle, lambda _, n=n: ended.append(n)):
                ended.append(n)  # it ended before
            if n != 1:
                outcome = ("a", r["data"])
                threading.Thread(target=self.c.request.finish, args=(handle, outcome)).start()
        return [headrace.PENDING] * len(batch)


asked, ended = [], []
headrace.register("Holds", Holds)
HOLDS = loaded({"backend": "Holds", "max": 2})


def on_end():
    """Its function is called once per request, after its outcome, or it says False: finished, late, cancelled, closed."""
    book = Book()
    items = [Item(n) for n in range(4)]
    with headrace.pipe(HOLDS) as pipe:
        book.thread(book.ask, pipe, items[0], ("a", items[0]))
        book.thread(book.ask, pipe, items[1], ("a", items[1]), LATE, timeout=0.01)
        wants = ("a", items[2]), LATE
        book.thread(book.ask, pipe, items[2], *wants, how="submit", timeout=0.01)
        future = pipe.submit({"data": items[3]})
        future.cancel()
        book.join()
    settle()
    check(sorted(asked) == sorted(ended), f"asked for {asked}, ended {ended}")
    check(future.done(), "a future is left open")


class Asks(headrace.Backend):
    """Lets another node run two requests for each of its own, and ends it with them."""

    keeps = True

    max = 2

    class Options(headrace.Options):
        slow: str = ""

    @classmethod
    def nodes_called(cls, options):
        return ["b"]

    def init(self, options, context):
        self.c, self.slow = context, options.slow

    def forward(self, batch):
        for r in batch:
            self.ask(r)
        return [headrace.PENDING] * len(batch)

    def ask(self, r):
        got, item, handle = [], r["data"], self.c.request.keep(r)

        def then(made, error):
            check(all(made is not one for one in got), "`then` was called twice")
            got.append(made)
            check(len(got) <= 2, "`then` was called too often")
            if len(got) == 2:
                self.c.request.finish(handle, ("a", item) if error is None else error)

        made = [{"data": Item(item.n)}, {"data": Item(item.n, slow=self.slow)}]
        withdraw = self.c.request.call(r, "b", made, then)
        if self.slow:
            self.c.request.on_end(handle, lambda _: withdraw())


headrace.register("Asks", Asks)


def _asking(slow):
    node = {"backend": f"Asks(slow={slow})" if slow else "Asks", "max": 2}
    other = {"backend": "Work(tag=b,most=2)", "max": 2}
    return loaded({"a": node, "b": other})


ASKS, ASKS_SLOW = _asking(""), _asking("b")


def call():
    """``context.request.call``: a backend lets another node run two new requests, and finishes its own when both have come."""
    book = Book()
    items = [Item(n) for n in range(3)]
    with headrace.pipe(ASKS) as pipe:
        for n, item in enumerate(items):
            how = "submit" if n else "call"
            book.thread(book.ask, pipe, item, ("a", item), how=how, node="a")
        book.join()
        settled(pipe)


def call_late():
    """``context.request.call`` of a request that is late: what it has asked for is withdrawn, ``then`` is called at most once for each."""
    book = Book()
    items = [Item(n) for n in range(3)]
    with headrace.pipe(ASKS_SLOW) as pipe:
        for n, item in enumerate(items):
            terms = {"timeout": 0.003} if n else {}
            how = "submit" if n == 1 else "call"
            book.thread(book.ask, pipe, item, ("a", item), LATE, how=how, node="a", **terms)
        book.join()
        settled(pipe)


class Mixes(headrace.Backend):
    """Of three requests one asks for its end and is answered, one is finished in ``forward``, one in another thread."""

    keeps = True

    def init(self, options, context):
        self.c = context

    def forward(self, batch):
        (r,) = batch
        n, handle = r["data"], self.c.request.keep(r)
        if n % 3 == 0:
            self.c.request.on_end(handle, lambda given: told.append((n, given == handle)))
            r["result"] = ("answered", n)
            return None
        if n % 3 == 1:
            threading.Thread(target=self.finish, args=(handle, n), name="finisher").start()
        else:
            self.finish(handle, n)
        return [headrace.PENDING]

    def finish(self, handle, n):
        check(self.c.request.finish(handle, ("finished", n)), f"finish of {n} is False")


told = []
headrace.register("Mixes", Mixes)
MIXES = loaded({"backend": "Mixes"})


def callers():
    """Callers in turn at one instance, some of whose requests are kept, in part before `forward` returns: no answer of another."""
    told.clear()

    def calls(first):
        for n in range(first, 9, 3):
            got = pipe({"data": n})["result"]
            check(got == ("finished" if n % 3 else "answered", n), f"{n} has the answer {got}")

    with headrace.pipe(MIXES) as pipe:
        threads = [threading.Thread(target=calls, args=(k,), name=f"caller{k}") for k in (0, 1, 2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        settle()
        check(sorted(told) == [(0, True), (3, True), (6, True)], f"ends told: {told}")


def same_dict():
    """A dict whose request was late is sent again, beside the finish of the first: each answer is of its own request."""
    answers = []

    def sends():
        request = {"data": Item(0)}
        with suppress(DeadlineExceededError):
            pipe(request, timeout=0.002)
        request["data"] = Item(7)
        answers.append(pipe(request)["result"])

    with headrace.pipe(HOLDS) as pipe:
        thread = threading.Thread(target=sends, name="sends")
        thread.start()
        thread.join()
        settled(pipe)
    check([item.n for _, item in answers] == [7], f"the answer is {answers}")
