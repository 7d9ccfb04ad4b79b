"""The inbox of a node: whoever leaves a request there is answered, beside all that may happen at that moment."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial

from composed import Work, loaded
from shared import Book, Item, ready, settled, through_chain, works
from shared import Work as PlainWork

import headrace
from headrace import Pipeline
from headrace.blueprint import Greedy, Limits, blueprint, node
from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    InstanceLostError,
    OverloadedError,
    RequestError,
)
from headrace_testing.interleavings import check, ctrl_c, run_async, settle, sleep

gate = threading.Event()
QUEUED = {"shortcut": False}
CLOSED, FULL, LATE = (ClosedError,), (OverloadedError,), (DeadlineExceededError,)


class Gated(PlainWork):
    """Items up to 0 wait for the gate. It checks the weight of a batch, and notes whom it has run."""

    def forward(self, batch):
        weight = sum(r.get("request_size", 1) for r in batch)
        check(not self.most or weight <= self.most, lambda: f"a batch of weight {weight}")
        order.extend(r["data"].n for r in batch)
        if batch[0]["data"].n <= 0:
            gate.wait()
        return super().forward(batch)


order = []


def _gated(most=1, **keys):
    return ready(works("a", Gated, most=most, max=most, **keys))


def _ask_all(book, pipe, items, how="call", may=(), **terms):
    for item in items:
        book.ask(pipe, item, ("a", item), may, how=how, **terms)


def _callers(book, pipe, each, *hows, may=()):
    """Start a thread for each way to ask, which asks again and again."""
    for i, how in enumerate(hows):
        items = [Item(n) for n in range(1 + i * each, 1 + (i + 1) * each)]
        book.thread(_ask_all, book, pipe, items, how, may)


def _held(book, pipe, count=1, may=()):
    """Have instances run items that wait for the gate."""
    gate.clear()
    for n in range(count):
        book.thread(_ask_all, book, pipe, [Item(-n)], may=may)
        settle(0.0)


# Who comes beside the last look of who goes.

WORKERS = ready(works("a", most=2, max=2, limits=QUEUED))
SHORT = ready(works("a", most=2, max=2))


def last_look():
    """Callers that come as a worker finds nothing more and goes."""
    book = Book()
    with Pipeline(WORKERS) as pipe:
        _callers(book, pipe, 2, "call", "submit", "call")
        book.join()
        settled(pipe, 6)


def put_back():
    """Callers that come as another one puts back the instance on which it has run its own request."""
    book = Book()
    with Pipeline(SHORT) as pipe:
        _callers(book, pipe, 2, "call", "call", "call")
        book.join()
        settled(pipe, 6)


def two_instances():
    """One that leaves a request may find either instance idle, in which callers run their own."""
    book = Book()
    with Pipeline(TWO) as pipe:
        _callers(book, pipe, 2, "call", "call", "submit", "call")
        book.join()
        settled(pipe, 8)


TWO = ready(works("a", most=1, max=1, instance_num=2))


# Beside a close, a loss, a bound.

ONE = _gated()


def _closed(*, drain):
    book = Book()
    pipe = Pipeline(ONE)
    _held(book, pipe, may=CLOSED)
    _callers(book, pipe, 1, "call", "submit", may=CLOSED)
    settle(0.0)
    book.thread(_ask_all, book, pipe, [Item(3)], may=CLOSED)
    book.thread(pipe.close, drain=drain, timeout=20)
    settle(0.0)
    waiting = pipe.stats()["nodes"]["a"]["waiting"]
    check(drain or not waiting, f"{waiting} wait after a close that does not drain")
    gate.set()
    book.join()
    check(len(book.outcomes) == 4, lambda: f"ended are {book.outcomes}")
    for n in (0, 1, 2) if drain else (0,):
        check(book.outcomes[n] == "ok", lambda n=n: f"item{n} came before: {book.outcomes}")


def drained():
    """A close that drains, beside callers that leave requests: each is answered or refused."""
    _closed(drain=True)


def refused():
    """A close that does not drain: who waits is refused while the batch goes on."""
    _closed(drain=False)


class Shuts(PlainWork):
    """Runs nothing once it is closed."""

    shut = False

    def forward(self, batch):
        check(not self.shut, "a batch runs in a backend that is closed")
        return super().forward(batch)

    def close(self):
        check(self.inside is None, "closed while a batch runs in it")
        self.shut = True


SHUTS = blueprint(node("a", partial(Shuts, "a"), max=2, limits=Limits(deadlock_after_s=0)))


def closed_while_idle():
    """A close of an idle node, beside the first that come: each is answered or refused, before all is closed."""
    book = Book()
    pipe = Pipeline(SHUTS)
    _callers(book, pipe, 1, "call", "submit", may=CLOSED)
    book.thread(pipe.close, timeout=20)
    book.join()
    check(len(book.outcomes) == 2, lambda: f"ended are {book.outcomes}")


class Dies(Gated):
    def outcome(self, r, item):
        if item.n in (0, 2):
            raise InstanceLostError("gone")
        return super().outcome(r, item)


DIES = ready(works("a", Dies, most=1, max=1, instance_num=2))


def lost():
    """Instances are lost while requests lie there: each is answered or fails with them, and nobody waits for ever."""
    book, may = Book(), (InstanceLostError,)
    with Pipeline(DIES) as pipe:
        _held(book, pipe, 2, may)
        _callers(book, pipe, 2, "call", "submit", "call", may=may)
        gate.set()
        book.join()
        settled(pipe, 8)


def _bounded(rule):
    return _gated(limits={"queue_size": 1, "queue_full": rule})


REJECTS, WAITS = _bounded("reject"), _bounded("wait")


def rejects():
    """``reject``: of those that come beside each other one waits, and the others are refused while the batch runs."""
    book = Book()
    with Pipeline(REJECTS) as pipe:
        _held(book, pipe)
        _callers(book, pipe, 1, "call", "submit", "call", may=FULL)
        settle(0.0)
        found = [*book.outcomes.values()].count("OverloadedError")
        check(found == 2, f"{found} of three are refused, where one may wait")
        gate.set()
        book.join()
        settled(pipe, 4)


def waits():
    """``wait``: as many calls of ``submit`` return as there is room for; all are answered."""
    book, returned = Book(), []

    def submits(item):
        future = pipe.submit({"data": item})
        returned.append(item)
        check(future.result()["result"] == ("a", item), "the answer of another")

    with Pipeline(WAITS) as pipe:
        _held(book, pipe)
        for n in (11, 12):
            book.thread(submits, Item(n))
        book.thread(_ask_all, book, pipe, [Item(1)])
        settle(0.0)
        check(len(returned) <= 1, lambda: f"submit has returned for {returned}")
        gate.set()
        book.join()
        settled(pipe, 4)


def submit_returns():
    """``wait``: ``submit`` returns as soon as its request is in the queue, and not only with its answer."""
    book, futures = Book(), []

    def submits(item):
        futures.append(pipe.submit({"data": item}))

    with Pipeline(WAITS) as pipe:
        _held(book, pipe)
        for n in (1, 2):
            book.thread(submits, Item(n))
        settle(0.0)
        check(len(futures) == 1, f"{len(futures)} calls returned, and there is room for one")
        check(futures[0].cancel(), "it waits, and cannot be cancelled")
        settle(0.0)
        check(len(futures) == 2, "there is room, and submit has not returned")
        gate.set()
        book.join()
        futures[1].result()
        settled(pipe, 3)


# Mixed.


def deadlines():
    """Deadlines of a call, a future and a coroutine end in time while the batch before them goes on."""
    book = Book()

    async def awaited(item):
        try:
            await pipe.call_async({"data": item}, timeout=0.01)
        except DeadlineExceededError:
            book.note(item.n, "DeadlineExceededError")

    with Pipeline(ONE) as pipe:
        _held(book, pipe)
        book.thread(_ask_all, book, pipe, [Item(5)])
        ways = ("submit", "call", "submit")
        threads = [
            book.thread(_ask_all, book, pipe, [Item(n)], how, LATE, timeout=0.01)
            for n, how in enumerate(ways, 1)
        ]
        threads.append(book.thread(run_async, awaited(Item(4))))
        for thread in threads:  # a deadline that is passed over would be seen as a deadlock
            thread.join()
        gate.set()
        book.join()
        late = [n for n, outcome in book.outcomes.items() if outcome != "ok"]
        check(sorted(late) == [1, 2, 3, 4], f"late are {late}")
        settled(pipe, 6)


def cancelled():
    """Futures that are cancelled beside callers and the worker that takes them: never run after that, never forgotten."""
    book = Book()

    def cancels(item):
        future = pipe.submit({"data": item})
        if not future.cancel():
            check(future.result()["result"] == ("a", item), "the answer of another")
            return
        withdrawn.append(item.n)
        try:
            future.result()
            check(holds=False, text="cancelled, and there is a result")
        except CancelledError:
            pass

    withdrawn = []
    with Pipeline(NOTED) as pipe:
        for n in (11, 12):
            book.thread(cancels, Item(n))
        _callers(book, pipe, 2, "call", "submit")
        book.join()
        ran = {*withdrawn} & {*order}
        check(not ran, f"withdrawn, and yet run: {ran}")
        settled(pipe, 6)


NOTED = _gated(2, limits=QUEUED)


def two_loops():
    """Two event loops begin requests, and one gives one of them up: it runs nowhere, and the others are answered."""
    book = Book()
    order.clear()

    async def begins(first, *, gives_up):
        loop = asyncio.get_running_loop()
        left = {n: loop.create_future() for n in (first, first + 1)}
        calls = {
            n: pipe.call_soon(
                {"data": Item(n)}, lambda call: left[call.request["data"].n].set_result(call.error)
            )
            for n in left
        }
        if gives_up:
            if not calls[first].cancel():  # it has not begun, or has ended
                given_up.append(order.count(first))
            del left[first]
        for future in left.values():
            check(await future is None, "it has failed")

    given_up = []
    with Pipeline(NOTED) as pipe:
        book.thread(run_async, begins(1, gives_up=True))
        book.thread(run_async, begins(3, gives_up=False))
        book.join()
        settled(pipe)
        check(given_up in ([], [order.count(1)]), f"given up, and run after that: {order}")


def priorities():
    """Urgent requests beside plain ones: of those that lie there when the instance comes free the most urgent goes first."""
    book = Book()
    order.clear()
    with Pipeline(ONE) as pipe:
        _held(book, pipe)
        for n, how, level in ((1, "call", 0), (2, "submit", 5), (3, "call", 9)):
            book.thread(_ask_all, book, pipe, [Item(n)], how, priority=level)
        settle(0.0)
        gate.set()
        book.join()
        check(order == [0, 3, 2, 1], f"order of service {order}")
        settled(pipe)


WEIGHTS = _gated(4, limits={**QUEUED, "queue_size": 8})


def weights():
    """Heavy requests beside plain ones: no batch is too heavy, and one that no batch holds is refused."""
    book = Book()

    def heavy(item, weight, how, may=()):
        request = {"data": item, "request_size": weight}
        if how == "call":
            book.judge(request, item, ("a", item), may, lambda: pipe(request))
        else:
            book.judge(request, item, ("a", item), may, lambda: pipe.submit(request).result())

    with Pipeline(WEIGHTS) as pipe:
        _callers(book, pipe, 2, "call", "submit")
        for n, weight, how in ((11, 3, "call"), (12, 3, "submit")):
            book.thread(heavy, Item(n), weight, how)
        book.thread(heavy, Item(13), 5, "submit", (RequestError,))
        book.join()
        check(book.outcomes[13] != "ok", "a request that no batch holds was run")
        settled(pipe)


LISTS = ready(works("a", most=2, max=2, instance_num=2, limits=QUEUED))
EACH = ready(
    works("x", next=["a"]),
    works("a", max=2, most=2, links={"each": "list:data"}),
)


def lists():
    """Lists beside single requests: the outcomes of each stay apart."""
    book = Book()
    items = [Item(n, bad="a" if n == 1 else "") for n in range(6)]
    want = lambda item: ("a", item)  # noqa: E731
    with Pipeline(LISTS) as pipe:
        book.thread(book.ask_list, pipe, items[:3], want)
        book.thread(book.ask_list, pipe, items[3:5], want)
        book.thread(book.ask, pipe, items[5], want(items[5]), how="submit")
        book.join()
        settled(pipe, 6)


def each():
    """Lists that become one request per element, from a call and a future."""

    def ask(how, *numbers):
        items = [*map(Item, numbers)]
        request = {"data": Item(0), "list": items}
        answer = pipe(request) if how == "call" else pipe.submit(request).result()
        check(answer["result"] == [("a", one) for one in items], f"{answer['result']}")

    book = Book()
    with Pipeline(EACH) as pipe:
        book.thread(ask, "call", 1, 2, 3)
        book.thread(ask, "submit", 4, 5)
        book.thread(ask, "submit")
        book.join()
        settled(pipe)


class Asks(PlainWork):
    """Asks the other pipeline for the items that say so."""

    def forward(self, batch):
        for r in batch:
            if r["data"].mute == "asks":
                pipes[self.tag]({"data": Item(0)})
        return super().forward(batch)

    def outcome(self, r, item):
        r["result"] = (self.tag, r["data"])


pipes = {}
P = ready(works("p", Asks, most=1, max=1, instance_num=2))
Q = ready(works("q", Asks, most=2, max=2))


def circle():
    """Two pipelines that call each other, where an instance comes free in any case: nobody is refused, nobody stands."""
    book = Book()

    def asks(pipe, tag, number, mute="", how="call"):
        item = Item(number, mute=mute)
        book.ask(pipe, item, (tag, item), how=how)

    with Pipeline(P) as p, Pipeline(Q) as q:
        pipes.update(p=q, q=p)
        book.thread(asks, p, "p", 1, "asks")
        for n in (2, 3):
            book.thread(asks, q, "q", n, "asks", "call" if n == 2 else "submit")
        book.thread(asks, p, "p", 4)
        book.join()
        settled(p)
        settled(q)


# Threads of backends, long batches, graphs.

OWN = loaded({"a": {"backend": "BackgroundThread[Work(most=2)]", "max": 2, "instance_num": 2}})


def own_threads():
    """Instances with threads of their own, which alone take what lies there."""
    book = Book()
    with headrace.pipe(OWN) as pipe:
        _callers(book, pipe, 2, "call", "submit", "call")
        book.join()
        settled(pipe, 6)


def own_threads_closed():
    """A close beside them, without drain."""
    book = Book()
    pipe = headrace.pipe(OWN)
    _callers(book, pipe, 2, "call", "submit", may=CLOSED)
    book.thread(pipe.close, drain=False, timeout=20)
    book.join()
    check(len(book.outcomes) == 4, lambda: f"ended are {book.outcomes}")


class Opens(Work):
    """Has a thread of its own. Item 0 waits for the gate, which item 5 opens."""

    owns_thread = True

    def forward(self, batch):
        for request in batch:
            if request["data"].n == 5:
                gate.set()
            elif not request["data"].n:
                gate.wait()
        return super().forward(batch)


headrace.register("Opens", Opens)
OPENS = loaded({"a": {"backend": "Opens(most=1)", "max": 1, "instance_num": 2}})


def idle_beside_a_held_thread():
    """While the thread of one instance runs a batch that does not end, the other instance takes what comes."""
    book = Book()
    gate.clear()
    with headrace.pipe(OPENS) as pipe:
        for items in ([Item(1), Item(0)], [Item(2), Item(5)]):
            book.thread(_ask_all, book, pipe, items)
        book.thread(_ask_all, book, pipe, [Item(3)], "submit")
        book.join()
        settled(pipe, 5)


LONG = ready(works("a", ms=1, most=2, max=2))


def returns():
    """After long batches a worker waits a moment for callers that come again: some do, some come late, one is new."""
    book = Book()
    with Pipeline(LONG) as pipe:
        _callers(book, pipe, 2, "call", "call", "call")
        book.thread(_ask_all, book, pipe, [Item(11)], "submit")
        book.join()
        book.thread(_ask_all, book, pipe, [Item(12)])
        book.thread(_ask_all, book, pipe, [Item(13)], "submit")
        book.join()
        settled(pipe, 9)


def one_returns():
    """Of two callers one comes again, just as the worker waits no more."""
    book = Book()

    def comes_again():
        _ask_all(book, pipe, [Item(2)])
        sleep(1e-4)
        _ask_all(book, pipe, [Item(3)])

    with Pipeline(LONG_QUEUED) as pipe:
        book.thread(_ask_all, book, pipe, [Item(1)])
        book.thread(comes_again)
        book.join()
        settled(pipe, 3)


LONG_QUEUED = ready(works("a", ms=1, most=2, max=2, limits=QUEUED))


def returns_closed():
    """A close while a worker waits for them: each is answered or refused, and the close is over in time."""
    book = Book()
    pipe = Pipeline(LONG)
    _callers(book, pipe, 3, "call", "call", "call", may=CLOSED)
    book.thread(pipe.close, timeout=20)
    book.join()
    check(len(book.outcomes) == 9, lambda: f"ended are {book.outcomes}")


LINGERS = partial(Greedy, batching_timeout_ms=5000)
HOLDS = _gated(4, instance_num=2, batch_policy=LINGERS, limits=QUEUED)


def company():
    """While one instance runs, another one waits for company: it begins as soon as the batch is full, by weights too."""
    book = Book()

    def heavy(item):
        request = {"data": item, "request_size": 3}
        book.judge(request, item, ("a", item), (), lambda: pipe(request))

    with Pipeline(HOLDS) as pipe:
        _held(book, pipe)
        book.thread(_ask_all, book, pipe, [Item(1)])
        book.thread(heavy, Item(2))
        settle(1)
        check(len(book.outcomes) == 2, lambda: f"the batch is full, and ended are {book.outcomes}")
        gate.set()
        book.join()
        settled(pipe, 3)


CHAIN = ready(works("a", max=2, next=["b"], limits={"shortcut": False}), works("b", max=2))


def graph():
    """Requests that a graph leads beside those of callers, at their first node: each goes all the way."""
    book = Book()

    def ask(first, how):
        for item in (Item(first), Item(first + 1)):
            book.ask(pipe, item, through_chain(item), how=how)

    with Pipeline(CHAIN) as pipe:
        for first, how in ((1, "call"), (3, "submit"), (5, "submit")):
            book.thread(ask, first, how)
        book.join()
        settled(pipe, 6)


HELD_CHAIN = ready(works("a", Gated, next=["b"]), works("b"))


def graph_deadline():
    """The deadline of a request that a graph leads passes while it lies at its first node, and the batch there goes on."""
    book = Book()

    def ask(n, how, may=(), **terms):
        item = Item(n)
        book.ask(pipe, item, through_chain(item), may, how=how, **terms)

    with Pipeline(HELD_CHAIN) as pipe:
        gate.clear()
        book.thread(ask, 0, "call")
        settle(0.0)
        book.thread(ask, 1, "submit")
        for n, how in ((2, "submit"), (3, "call")):
            thread = book.thread(ask, n, how, LATE, timeout=0.01)
            thread.join()  # a deadline that is passed over would be seen as a deadlock
        gate.set()
        book.join()
        settled(pipe)


BOUND = blueprint(
    node(
        "a",
        partial(Gated, "a"),
        next=["b"],
        limits=Limits(queue_size=1, queue_full="reject", deadlock_after_s=0),
    ),
    node("b", partial(PlainWork, "b", 1), limits=Limits(deadlock_after_s=0)),
)


def _has_room(book, pipe, ask):
    """Check that one request may wait while another one runs: nobody else is counted."""
    for n in (0, 10):
        gate.clear()
        book.thread(ask, Item(-n))
        settle(0.0)
        book.thread(ask, Item(11 + n))
        settle(0.0)
        gate.set()
        book.join()
        ended = {key: book.outcomes[key] for key in (-n, 11 + n)}
        check({*ended.values()} == {"ok"}, f"there was room: {ended}")
    settled(pipe)


def walkers():
    """Callers that lie at the second node count at the first while they do, and not afterwards."""
    book = Book()

    def ask(*items):
        for item in items:
            book.ask(pipe, item, through_chain(item), FULL)

    with Pipeline(BOUND) as pipe:
        for first in (1, 3, 5):
            book.thread(ask, Item(first), Item(first + 1))
        book.join()
        _has_room(book, pipe, ask)


def interrupted():
    """Ctrl-C hits one that is about to wait at the second node: it counts nowhere any more."""
    book = Book()

    def ask(item):
        book.ask(pipe, item, through_chain(item), FULL)

    with Pipeline(BOUND) as pipe:
        book.thread(ask, Item(1))
        sleep(0.0)
        with ctrl_c(), suppress(OverloadedError):
            pipe({"data": Item(2)})
        book.join()
        _has_room(book, pipe, ask)
