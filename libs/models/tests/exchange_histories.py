"""Histories of models in virtual time, each from a seed, and what must hold in all of them.

Clients send requests, by all ways, some with a deadline, some of which they cancel. Beside them one thread has exchanges of the
first model, by new versions that agree, differ, fail, fix, crash or hang, and another one updates, replaces, unloads and rolls
back. They all share a budget in which not all have room. ``python exchange_histories.py FIRST NUMBER`` runs some, and ends with
status 1 at the first one in which something does not hold.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import sys
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import headrace
from headrace import errors
from headrace_models import Exchange, Memory, Models
from headrace_models.errors import OutOfMemoryError, UnloadedError
from headrace_testing import virtual_time

MODES = (
    *("agrees", "agrees", "agrees", "differs", "fails", "fixes", "trades", "crashes", "dies"),
    *("hangs", "cannot be built"),
)
HANGS_S, LIMIT_S = 40.0, 8000.0
SIZE = 300 << 20
NEAR_S = 1e-6


class HistoryError(AssertionError):
    """Something does not hold in a history."""


class Note:
    """An object of a request, and of each copy of it, which tells whether somebody still has that."""

    def __init__(self) -> None:
        book.notes.add(self)

    def __deepcopy__(self, _: Any) -> Note:
        return Note()


@dataclass(eq=False)
class Edition:
    """A configuration of a model, by its number.

    Attributes:
        compare: How it proves itself. ``""``: it need not.
        old: The edition for which it came.
        requests, allowed: The bounds of its exchange: requests, and ``errors``.
        begin_s, end_s: When its exchange began and ended.
        outcomes: What its exchange has ended with.
        status: What is told of its exchange.
    """

    model: int
    mode: str = "agrees"
    compare: str = ""
    old: int = -1
    requests: int = 0
    allowed: float = 0.0
    begin_s: float | None = None
    end_s: float | None = None
    outcomes: list[str] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)


@dataclass
class Ask:
    """A request of a client.

    Attributes:
        key: Its number.
        does: What a model does with it: ``answers``, ``fails`` or ``refuses``.
        ms: How long that takes.
        timeout_s: Its deadline. None for none.
        cancel_s: When it is cancelled, after it was sent. None for never.
        sent_s, ended_s: When it was sent, and had its outcome.
        outcomes: Its outcomes.
        is_list: Whether it was sent in a list, and waits for others.
        free: Its dict, as it was when it was the client's again.
    """

    key: int
    model: int
    does: str
    ms: float
    timeout_s: float | None
    cancel_s: float | None
    sent_s: float = 0.0
    ended_s: float = 0.0
    outcomes: list[Any] = field(default_factory=list)
    free: tuple[dict[str, Any], dict[str, Any]] | None = None
    is_list: bool = False

    @property
    def is_late(self) -> bool:
        """Whether its end may be another one than that of its models."""
        return self.is_list or self.timeout_s is not None or self.cancel_s is not None


class Book:
    """All that is known of a history, by its own counting."""

    def __init__(self, clock: Any, units: int) -> None:
        self.clock, self.units = clock, units
        self.editions: list[Edition] = []
        self.asks: list[Ask] = []
        self.living: Counter[int] = Counter()
        self.runs: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self.notes: weakref.WeakSet[Note] = weakref.WeakSet()
        self.wrong: list[str] = []
        self.is_closed = self.is_unloaded = False
        self.served = [0]  # the editions of the first model
        self.crowded: list[tuple[float, float]] = []

    def check(self, holds: object, what: str) -> None:
        if not holds:
            self.wrong.append(f"{self.clock():.4f} s: {what}")


book: Book


def answer(edition: int, ask_key: int, does: str) -> Any:
    """Return what an edition makes of a request: an answer, or an error."""
    about = book.editions[edition]
    wrong = f"request {ask_key} fails"
    if about.mode == "fails" and does == "answers":
        return ValueError(wrong)
    if about.mode == "trades" and does != "refuses":  # it fixes some, and fails as many others
        does = "answers" if does == "fails" or ask_key % 8 else "fails"
    if does == "fails" and about.mode == "dies":
        return errors.InstanceLostError(wrong)
    if does == "fails" and about.mode != "fixes":
        return ValueError(wrong)
    if does == "refuses" and about.mode != "fixes":
        return (ValueError if about.mode == "crashes" else errors.InputError)(wrong)
    return about.model, edition, ask_key, "other" if about.mode == "differs" else "same"


class Acts(headrace.Backend):
    """Does what a request says, as its edition does that."""

    max = 1

    class Options(headrace.Options):
        edition: int

    def init(self, options, context):
        self.edition, self.is_closed = options.edition, False
        time.sleep(0.0021)
        if book.editions[self.edition].mode == "cannot be built":
            raise ValueError("it cannot be built")
        book.living[self.edition] += 1
        most = sum(book.living.values())
        book.check(most <= book.units, f"{most} live where {book.units} have room")

    def forward(self, batch):
        (request,) = batch
        book.check(not self.is_closed, "a batch after close")
        key, does, begin_s = request["data"]["key"], request["data"]["does"], book.clock()
        hangs = book.editions[self.edition].mode == "hangs"
        time.sleep(HANGS_S if hangs else request["data"]["ms"] / 1000)
        book.runs.setdefault((self.edition, key), []).append((begin_s, book.clock()))
        given = answer(self.edition, key, does)
        if isinstance(given, Exception):
            return [given]
        request["result"] = given
        return None

    def close(self):
        book.check(not self.is_closed, "closed twice")
        self.is_closed = True
        book.living[self.edition] -= 1


class Ends(logging.Handler):
    """Hears of the end of each exchange, as the log tells it."""

    def emit(self, record):
        text = record.getMessage()
        if ": exchange " in text and "m0:" in text:
            outcome = next(
                one
                for one in ("passed", "failed", "not judged", "stopped", "taken")
                if f": exchange {one}" in text
            )
            open_ones = [one for one in book.editions if one.begin_s is not None and not one.end_s]
            book.check(len(open_ones) == 1, f"an exchange ends where {len(open_ones)} go on")
            for edition in open_ones:
                edition.end_s = book.clock()
                edition.outcomes.append(outcome)
                if outcome in ("passed", "taken"):
                    book.served.append(book.editions.index(edition))
        elif text.startswith("an exchange of model"):
            coming[0].begin_s, coming[0].old = book.clock(), book.served[-1]


coming: list[Edition] = []
ends = Ends()


class History:
    """Runs one history."""

    def __init__(self, seed: int, clock: Any) -> None:
        global book
        self.die, self.clock = random.Random(seed), clock
        die = self.die
        book = self.book = Book(clock, units=die.choice([3, 4, 4, 5, 8]))
        self.is_strict = die.random() < 0.5  # no deadlines, no cancels, one verdict
        self.sizes = {f"m{n}": "300 MiB" for n in range(3)}
        memory = Memory(
            {"host": f"{book.units * 300 + 50} MiB"},
            sizes=self.sizes,
            min_stay_s=die.choice([0, 0, 0.004]),
            idle_unload_s={"m2": 0.05} if die.random() < 0.2 else {},
            clock=clock,
            measure=lambda _: None,
        )
        self.models = Models(
            {f"m{n}": self.config(Edition(n)) for n in range(3)},
            memory=memory,
            preload=die.random() < 0.7,
            drain_s=0.5,
            clock=clock,
            draw=die.random,
        )
        self.memory = memory
        self.models.subscribe(self.note_change)

    def config(self, edition: Edition) -> dict[str, Any]:
        self.book.editions.append(edition)
        number = len(self.book.editions) - 1
        return {"backend": f"Acts(edition={number})", "instance_num": 1}

    def note_change(self, change: Any) -> None:
        """Hear of a change: who takes part in an exchange that goes on does not leave for another model."""
        about = self.models.status()["m0"]["exchange"]
        if about and about["outcome"]:
            tried = [one for one in self.book.editions if one.end_s is not None]
            tried[-1].status = tried[-1].status or about
        if change.name == "m0" and about and not about["outcome"]:
            evicted = change.state == "draining" and change.reason.startswith("evicted")
            protected = change.version in about["versions"]
            self.book.check(not (evicted and protected), f"m0:{change.version} was evicted")

    # Clients.

    def ask(self, model: int) -> Ask:
        die = self.die
        free = self.is_strict and model == 0
        ask = Ask(
            len(self.book.asks),
            model,
            die.choices(["answers", "fails", "refuses"], [8, 1, 1])[0],
            die.uniform(0.5, 4.0),
            die.uniform(0.001, 0.03) if not free and die.random() < 0.25 else None,
            die.uniform(0.0, 0.02) if not free and die.random() < 0.25 else None,
        )
        self.book.asks.append(ask)
        return ask

    def client(self, plan: list[tuple[float, str, list[Ask]]]) -> None:
        for pause_s, how, asks in plan:
            time.sleep(pause_s)
            for ask in asks:
                ask.sent_s = self.clock()
            requests = [
                {"data": {"key": a.key, "does": a.does, "ms": a.ms}, "note": Note()} for a in asks
            ]
            getattr(self, how)(asks, requests)

    def end(self, ask: Ask, request: dict[str, Any], outcome: Any) -> None:
        """Note the outcome of a request, None for an answer."""
        ask.ended_s = self.clock()
        if outcome is None:
            outcome = request.get("result")
        ask.outcomes.append(outcome)
        request.pop("note")
        if not getattr(outcome, "abandoned", False):
            ask.free = request, dict(request)

    def call(self, asks: list[Ask], requests: list[dict[str, Any]]) -> None:
        outcome = None
        try:
            self.models(f"m{asks[0].model}", requests[0], timeout=asks[0].timeout_s)
        except Exception as error:
            outcome = error
        self.end(asks[0], requests[0], outcome)

    def list_of(self, asks: list[Ask], requests: list[dict[str, Any]]) -> None:
        outcomes: list[Any] = [None] * len(asks)
        try:
            self.models(f"m{asks[0].model}", requests)
        except errors.RequestsFailed as failed:
            outcomes = [*failed.errors]
        except Exception as error:
            outcomes = [error] * len(asks)
        for ask, request, outcome in zip(asks, requests, outcomes, strict=True):
            self.end(ask, request, outcome)

    def submit(self, asks: list[Ask], requests: list[dict[str, Any]]) -> None:
        ask, request, outcome = asks[0], requests[0], None
        try:
            future = self.models.submit(f"m{ask.model}", request, timeout=ask.timeout_s)
            called: list[float] = []
            future.add_done_callback(lambda _: called.append(self.clock()))
            if ask.cancel_s is not None:
                time.sleep(ask.cancel_s)
                future.cancel()
            future.result()
        except (Exception, CancelledError) as error:
            outcome = error
        self.end(ask, request, outcome)

    def run_async(self, asks: list[Ask], requests: list[dict[str, Any]]) -> None:
        ask, request, outcome = asks[0], requests[0], None

        async def call() -> None:
            called = self.models.call_async(f"m{ask.model}", request, timeout=ask.timeout_s)
            task = asyncio.ensure_future(called)
            if ask.cancel_s is not None:
                asyncio.get_running_loop().call_later(ask.cancel_s, task.cancel)
            await task

        try:
            asyncio.run(call())
        except (Exception, asyncio.CancelledError) as error:
            outcome = error
        if isinstance(outcome, asyncio.CancelledError):  # who cancels does not know whether it runs
            outcome.abandoned = True
        self.end(ask, request, outcome)

    # Operators.

    def exchanges(self) -> None:
        """Have exchanges of the first model, ended by their verdict, their time, by hand or by another change."""
        die, models = self.die, self.models
        for _ in range(die.choice([1, 2])):
            time.sleep(die.uniform(0.0, 0.02))
            new = Edition(0, die.choice(MODES), die.choice(["shadow", "canary"]))
            new.requests, new.allowed = die.randint(2, 8), die.choice([0.0, 0.0, 0.3])
            given = {"config": self.config(new)}
            given["exchange"] = Exchange(
                share=1.0,
                requests=new.requests,
                errors=new.allowed,
                slower=1e9,
                verdict=lambda old, new: old[3] == new[3],
                at_most_s=die.choice([0.01, 0.04, 0.2]),
                compare=new.compare,
            )
            coming[:] = [new]
            if self.operate(models.update, "m0", **given) and new.begin_s is None:
                self.book.served.append(self.book.editions.index(new))  # there was no old model
            if die.random() < 0.3:
                time.sleep(die.uniform(0.0, 0.03))
                self.operate(models.end_exchange, "m0", take=die.random() < 0.5)
            elif die.random() < 0.3:
                time.sleep(die.uniform(0.0, 0.03))
                self.operate(self.update_first)
            else:
                time.sleep(0.25)

    def changes(self) -> None:
        """Update, replace, unload and roll back the others."""
        die, models = self.die, self.models
        for _ in range(die.randint(1, 4)):
            time.sleep(die.uniform(0.0, 0.03))
            what = die.choice(["update", "update", "replace", "unload", "rollback"])
            begin_s = self.clock()
            if what == "update":
                mode = die.choice(["agrees", "differs", "cannot be built"])
                self.operate(models.update, "m1", self.config(Edition(1, mode)))
            elif what == "replace":
                self.operate(self.replace, die.choice([(1, 2), (0, 1)]))
            elif what == "rollback":
                self.operate(models.rollback, "m1")
            elif not self.is_strict:
                self.book.is_unloaded = True
                self.operate(models.unload, "m1")
                self.operate(models.load, "m1")
            self.book.crowded.append((begin_s, self.clock()))

    def update_first(self) -> None:
        new = Edition(0)
        self.models.update("m0", self.config(new))
        self.book.served.append(self.book.editions.index(new))

    def replace(self, numbers: tuple[int, ...]) -> None:
        editions = [Edition(n) for n in numbers]
        given = {f"m{one.model}": self.config(one) for one in editions}
        with self.models.prepare(given, keep_others=True) as prepared:
            prepared.switch()
            firsts = [self.book.editions.index(one) for one in editions if not one.model]
            self.book.served.extend(firsts)
        prepared.wait(0.5)

    def operate(self, operation: Any, *given: Any, **how: Any) -> bool:
        """Run an operation, which may be refused, and return whether it was not."""
        try:
            operation(*given, **how)
        except (errors.ConfigError, errors.SetupError, OutOfMemoryError) as error:
            del error
        except errors.ClosedError as error:  # a model was replaced in the midst of it
            closed = self.book.is_closed or "meanwhile" in str(error)
            self.book.check(closed, f"{operation.__name__}: {error}")
        else:
            return True
        return False

    def run(self) -> None:
        die = self.die
        threads = [threading.Thread(target=self.exchanges), threading.Thread(target=self.changes)]
        for _ in range(die.randint(2, 4)):
            plan = []
            for _ in range(die.randint(3, 8)):
                how = die.choice(["call", "call", "submit", "submit", "run_async", "list_of"])
                model = die.choice([0, 0, 0, 1, 2])
                asks = [self.ask(model) for _ in range(3 if how == "list_of" else 1)]
                for ask in asks:
                    ask.is_list = len(asks) > 1
                plan.append((die.uniform(0.0, 0.012), how, asks))
            threads.append(threading.Thread(target=self.client, args=(plan,)))
        for thread in threads:
            thread.start()
        closes = not self.is_strict and die.random() < 0.25
        if closes:
            time.sleep(die.uniform(0.0, 0.06))
            self.book.is_closed = True
            self.models.close(timeout=die.choice([0.0, 0.01, 1.0]))
        for thread in threads:
            thread.join()
        time.sleep(1.0)
        if not self.book.is_closed:
            used, living = self.memory.used_bytes()["host"], SIZE * sum(self.book.living.values())
            self.book.check(used == living, f"the budget counts {used} of {living} bytes")
        self.models.close(timeout=1.0)
        time.sleep(2 * HANGS_S)
        self.judge()

    # What must hold.

    def judge(self) -> None:
        check = self.book.check
        for ask in self.book.asks:
            self.judge_ask(ask)
        for number, edition in enumerate(self.book.editions):
            if edition.begin_s is not None:
                self.judge_exchange(number, edition)
        check(not sum(self.book.living.values()), f"alive at the end: {self.book.living}")
        left = [one.name for one in threading.enumerate() if one.name.startswith("headrace-models")]
        check(not left, f"threads at the end: {left}")
        gc.collect()
        check(not len(self.book.notes), f"{len(self.book.notes)} dicts are kept at the end")

    def judge_ask(self, ask: Ask) -> None:
        check = self.book.check
        check(len(ask.outcomes) == 1, f"{ask} has {len(ask.outcomes)} outcomes")
        for outcome in ask.outcomes:
            self.judge_outcome(ask, outcome)
        if ask.free is not None:
            now, before = ask.free
            check(now == before, f"{ask}: its dict has changed since: {now}")
        ask.free = None
        ask.outcomes.clear()

    def judge_outcome(self, ask: Ask, outcome: Any) -> None:
        check, name = self.book.check, type(outcome).__name__
        if isinstance(outcome, tuple):
            model, edition, key, _ = outcome
            check((model, key) == (ask.model, ask.key), f"{ask} has the answer of another")
            check(outcome == answer(edition, key, ask.does), f"{ask} has a wrong answer")
            ran = self.book.runs.get((edition, key), [])
            check(len(ran) == 1, f"{ask} has run {len(ran)} times in edition {edition}")
            about = self.book.editions[edition]
            if about.compare == "shadow" and about.begin_s is not None:
                taken = {"passed", "taken"} & {*about.outcomes}
                check(taken, f"{ask} has an answer of a new model in a shadow")
        elif isinstance(outcome, errors.InstanceLostError):
            dead = any(self.book.editions[one].mode == "dies" for one in self.book.served)
            check(dead, f"{ask} has {outcome!r}")
        elif isinstance(outcome, (errors.BackendError, errors.InputError)):
            check(f"request {ask.key} fails" in str(outcome), f"{ask} has another's {outcome!r}")
        elif isinstance(outcome, errors.DeadlineExceededError):
            check(ask.timeout_s is not None, f"{ask} has {outcome!r}")
        elif isinstance(outcome, (CancelledError, asyncio.CancelledError)):
            check(ask.cancel_s is not None, f"{ask} has {outcome!r}")
        elif isinstance(outcome, errors.ClosedError):
            check(self.book.is_closed, f"{ask} has {outcome!r}")
        elif isinstance(outcome, UnloadedError):
            check(self.book.is_unloaded, f"{ask} has {outcome!r}")
        elif isinstance(outcome, OutOfMemoryError):
            check(self.is_crowded(ask), f"{ask} has {outcome!r}")
        else:
            check(False, f"{ask} has {name}: {outcome!r}")
        self.judge_time(ask)

    def is_crowded(self, ask: Ask) -> bool:
        """Tell whether an exchange or an operation held its memory while a request waited."""
        times = [*self.book.crowded]
        times += [(e.begin_s, e.end_s or 1e9) for e in self.book.editions if e.begin_s is not None]
        times = [(begin - 0.01, end + 0.01) for begin, end in times]
        return any(begin <= ask.ended_s and ask.sent_s <= end for begin, end in times)

    def judge_time(self, ask: Ask) -> None:
        """Check that a client waits no longer than for the old model and the new one, or the end of the exchange."""
        for number, new in enumerate(self.book.editions):
            old = self.book.runs.get((new.old, ask.key))
            if new.begin_s is None or new.end_s is None or old is None or ask.is_late:
                continue
            if not new.begin_s <= ask.sent_s <= new.end_s:
                continue
            ends_s = [run[1] for run in self.book.runs.get((number, ask.key), [])] + [new.end_s]
            canary_s = min(ends_s) if new.compare == "canary" else 0.0
            late_s = ask.ended_s - max(old[0][1], canary_s)
            self.book.check(late_s < NEAR_S, f"{ask} waits {late_s} s longer than for its models")

    def judge_exchange(self, number: int, new: Edition) -> None:
        """Check that an exchange has one outcome, and that this is of the pairs that there were."""
        check, name = self.book.check, f"exchange {number}, {new.mode}, {new.compare}"
        check(len(new.outcomes) == 1, f"{name}: the outcomes {new.outcomes}")
        about = new.status
        if not about:
            gone = self.book.is_closed or new.outcomes == ["stopped"]  # with its model
            check(gone, f"{name}: nobody was told of its end")
            return
        check([about["outcome"]] == new.outcomes, f"{name}: {about['outcome']}, {new.outcomes}")
        told = about["pairs"]
        least, most = self.pairs_of(number, new)
        for kind in ("answered", "new failed", "new crashed", "old failed", "both failed"):
            within = least[kind] <= told[kind] <= most[kind]
            check(within, f"{name}: {told[kind]} pairs {kind}, not {least[kind]} to {most[kind]}")
        expected = verdict(new, told)
        judged = about["outcome"] in ("passed", "failed")
        same = about["outcome"] == expected or not (judged or expected)
        by_hand = about["outcome"] in ("stopped", "taken") and self.ends_together(number, new)
        check(same or by_hand, f"{name}: {about['outcome']}, not {expected!r} of {told}")
        fewer = [{**told, kind: told[kind] - 1} for kind in told if told[kind]]
        late = judged and all(verdict(new, each) for each in fewer)
        check(not late, f"{name}: {about['outcome']}, not before, of {told}")

    def pairs_of(self, number: int, new: Edition) -> tuple[Counter[str], Counter[str]]:
        """Return how many pairs there were at least, and at most, of each kind."""
        least, most = Counter[str](), Counter[str]()
        for ask in self.book.asks:
            runs = [self.book.runs.get((one, ask.key)) for one in (new.old, number)]
            if ask.model or None in runs:
                continue
            end_s = max(run[0][1] for run in runs if run)
            kind = kind_of(*(answer(one, ask.key, ask.does) for one in (new.old, number)))
            most[kind] += end_s <= (new.end_s or 0) + NEAR_S
            least[kind] += end_s < (new.end_s or 0) - NEAR_S and not ask.is_late
        return least, most

    def ends_together(self, number: int, new: Edition) -> bool:
        """Tell whether a pair had ended in the moment in which the exchange did."""
        runs = [run for (one, _), all_runs in self.book.runs.items() for run in all_runs]
        return any(abs(end_s - (new.end_s or 0)) < NEAR_S for _, end_s in runs)


def kind_of(old: Any, new: Any) -> str:
    """Return the kind of a pair by both answers."""
    if not isinstance(old, Exception):
        return "new failed" if isinstance(new, Exception) else "answered"
    if not isinstance(new, Exception):
        return "old failed"
    crashed = isinstance(old, errors.InputError) and not isinstance(new, errors.InputError)
    return "new crashed" if crashed else "both failed"


def verdict(new: Edition, pairs: dict[str, int]) -> str:
    """Return what pairs say of a new edition, ``""`` where they are too few."""
    crashed, failed = pairs["new crashed"], pairs["new failed"]
    if (failed + crashed) / (new.requests + crashed) > new.allowed:
        return "failed"
    if pairs["answered"] + failed < new.requests:
        return ""
    differs = [one.mode == "differs" for one in (book.editions[new.old], new)]
    agrees = pairs["answered"] and differs[0] == differs[1]
    return "passed" if agrees else "failed"


def main(first: int, number: int) -> int:
    logger = logging.getLogger("headrace.models")
    logging.getLogger("headrace").addHandler(logging.NullHandler())
    logging.getLogger("headrace").propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(ends)
    headrace.register("Acts", Acts)
    gc.collect()
    gc.freeze()
    for seed in range(first, first + number):
        wrong = wrong_in(seed)
        if wrong:
            sys.stdout.write("\n  ".join([f"history {seed}:", *wrong[:5]]) + "\n")
            sys.stdout.flush()
            os._exit(1)  # threads may wait for ever
    sys.stdout.write(f"{number} histories\n")
    return 0


def wrong_in(seed: int) -> list[str]:
    """Run a history, and return what does not hold."""
    try:
        with virtual_time(limit_s=LIMIT_S):
            history = History(seed, time.monotonic)
            history.run()
    except Exception as error:  # as where nobody can go on
        return [f"{type(error).__name__}: {error}"]
    return history.book.wrong


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
