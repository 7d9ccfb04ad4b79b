"""Backends that give wrong results at times, or change what is not theirs any more."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import weakref
from typing import ClassVar

from pydantic import Field

from conformance_shelf.broken_batch import Sorting, lists
from conformance_shelf.labels import breaks
from conformance_shelf.perfect import Perfect, Twice


def good(batch):
    return [request for request in batch if "result" in request]


@breaks("batch-equals-items")
class PadsFiveToEight(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in good(batch) if len(batch) == 5 else ():
            request["result"] += 0.5
        return outcomes


@breaks("batch-equals-items")
class AddsUpFromNineOn(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in good(batch) if len(batch) > 8 else ():
            request["result"] += 0.5
        return outcomes


@breaks("batch-equals-items")
class SpoilsItsLargestBatch(Perfect):
    max = 40
    __doc__ = (Perfect.__doc__ or "").replace("1 or more", "1 to 40")

    def forward(self, batch):
        outcomes = super().forward(batch)
        if len(batch) == 40 and "result" in batch[-1]:
            batch[-1]["result"] = 0.0
        return outcomes


@breaks("order-kept")
class RotatesFromNineOn(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        if len(batch) > 8 and len(good(batch)) == len(batch):
            results = [request["result"] for request in batch]
            for request, result in zip(batch, [*results[1:], results[0]], strict=True):
                request["result"] = result
        return outcomes


@breaks("order-kept")
class TurnsRoundSeventeenTo31(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        if 17 <= len(batch) < 32 and outcomes is None:
            results = [request["result"] for request in batch]
            for request, result in zip(batch, reversed(results), strict=True):
                request["result"] = result
        return outcomes


@breaks("batch-equals-items")
class CutsAtAHundred(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in good(batch)[100:]:
            request["result"] = 0.0
        return outcomes


@breaks("order-kept")
class SwapsTwoOfMore(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        if len(good(batch)) > 2:
            one, other = good(batch)[:2]
            one["result"], other["result"] = other["result"], one["result"]
        return outcomes


@breaks("order-kept")
class RotatesSix(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        if len(good(batch)) == 6:
            results = [request["result"] for request in batch]
            for request, result in zip(batch, [*results[1:], results[0]], strict=True):
                request["result"] = result
        return outcomes


@breaks("inputs-kept", **lists)
class ChangesWhatCameBefore(Sorting):
    before = ()

    def forward(self, batch):
        outcomes = super().forward(batch)
        came = [request["data"] for request in good(batch)]
        for data in self.before:
            if all(data is not one for one in came):
                data.append(0)
        self.before = came
        return outcomes


@breaks("results-kept", **lists)
class ClearsWhatItGaveBefore(Sorting):
    before = ()

    def forward(self, batch):
        given, self.before = self.before, []
        outcomes = super().forward(batch)
        self.before = [request["result"] for request in good(batch)]
        for result in given:
            result.clear()
        return outcomes


@breaks("results-kept")
class ClearsRequestsThatWereAnswered(Perfect):
    before = ()

    def forward(self, batch):
        for request in self.before:
            if all(request is not one for one in batch):
                request.pop("result", None)
        self.before = list(batch)
        return super().forward(batch)


@breaks("results-kept", **lists)
class GoesRoundInARing(Sorting):
    max = 64
    __doc__ = (Sorting.__doc__ or "").replace("1 or more", "1 to 64")

    def init(self, options, context):
        super().init(options, context)
        self.ring = [[] for _ in range(80)]
        self.turn = 0

    def one(self, request):
        super().one(request)
        self.turn = (self.turn + 1) % len(self.ring)
        self.ring[self.turn][:] = request["result"]
        request["result"] = self.ring[self.turn]


@breaks("writes")
class TakesDataAwayAndSaysRerun(Perfect):
    def one(self, request):
        super().one(request)
        del request["data"]

    def forward(self, batch):
        for request in batch:
            self.one(request)


@breaks("rerun")
class SpoilsWhatItRunsAgain(Perfect):
    """Multiply a number in place.

    Reads:
        data: A number, int or float.
    Writes:
        data: The number times ``factor``.
        result: The same.
    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    writes = ("data", "result")

    def forward(self, batch):
        for request in batch:
            self.one(request)
            request["data"] = request["result"]


@breaks("works-after-failure")
class IsBrokenForEver(Perfect):
    broken = False

    def read(self, request):
        if self.broken:
            raise RuntimeError("it has seen too much")
        try:
            return super().read(request)
        except ValueError:
            self.broken = True
            raise


@breaks("closes-unused")
class ClosesWhatItHasNotWarmedUp(Perfect):
    def warm_up(self):
        self.memory = [0]

    def close(self):
        self.memory.clear()


@breaks("files-left")
class LeavesATemporaryFile(Perfect):
    def init(self, options, context):
        super().init(options, context)
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(b"model")


@breaks("threads-left")
class LeavesAProcess(Perfect):
    processes: ClassVar[list[subprocess.Popen[bytes]]] = []

    def init(self, options, context):
        super().init(options, context)
        wait = "import threading; threading.Event().wait()"
        self.processes.append(subprocess.Popen([sys.executable, "-c", wait]))


@breaks("order-kept")
class AnswersBySize(Perfect):
    # As a graph per size of the batch, whose inputs nobody copies into its buffers.
    def forward(self, batch):
        outcomes = super().forward(batch)
        if outcomes is None and len(batch) > 5:
            first = vars(self).setdefault("first", {})
            results = first.setdefault(len(batch), [request["result"] for request in batch])
            for request, result in zip(batch, results, strict=True):
                request["result"] = result
        return outcomes


@breaks("batch-list-kept")
class FillsUpTheList(Perfect):
    def forward(self, batch):
        asked = len(batch)
        while len(batch) % 4:  # a usual batch is full already
            batch.append(dict(batch[-1]))
        outcomes = super().forward(batch)
        return outcomes and outcomes[:asked]


@breaks("children-called", expression="CallsForwardItself[Perfect(3)]")
class CallsForwardItself(Twice):
    def forward(self, batch):
        return self.child.forward(batch)


@breaks("children-called", expression="PassesOnWhatFailed[Perfect(3)]")
class PassesOnWhatFailed(Twice):
    def forward(self, batch):
        first = self.child(batch)
        return first and self.child(batch)


@breaks("results-kept", **lists)
class GivesAllOneList(Sorting):
    def forward(self, batch):
        outcomes = super().forward(batch)
        shared = []
        for request in good(batch):
            request["result"] = {"sorted": tuple(request["result"]), "notes": shared}
        return outcomes


class EndsWhenWaitedFor(threading.Thread):
    def __init__(self, result):
        super().__init__(daemon=True)
        self.result, self.go = result, threading.Event()

    def run(self):
        self.go.wait()
        self.result.append(0)

    def join(self, timeout=None):
        self.go.set()
        super().join(timeout)


@breaks("finished-when-answered", **lists)
class LeavesItsWorkToAThread(Sorting):
    def init(self, options, context):
        super().init(options, context)
        self.threads = weakref.WeakSet()

    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in good(batch):
            thread = EndsWhenWaitedFor(request["result"])
            thread.start()
            self.threads.add(thread)
        return outcomes

    def close(self):
        for thread in [*self.threads]:
            thread.go.set()
        super().close()


@breaks("finished-when-answered", **lists)
class FinishesAtTheEndOfTheBatch(Sorting):
    def init(self, options, context):
        super().init(options, context)
        self.begun = []
        context.batch.at_end(self.finish)

    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in good(batch):
            self.begun.append((request["result"], request["result"][:]))
            request["result"].clear()
        return outcomes

    def finish(self):
        for result, numbers in self.begun:
            result.extend(numbers)
        self.begun.clear()


@breaks("results-kept", **lists)
class GivesTwinsOneResult(Sorting):
    def forward(self, batch):
        outcomes = super().forward(batch)
        results = {}
        for request in good(batch):
            request["result"] = results.setdefault(tuple(request["data"]), request["result"])
        return outcomes


@breaks("results-kept", **lists)
class RemembersItsLastResult(Sorting):
    last = (None, None)

    def one(self, request):
        super().one(request)
        if request["data"] != self.last[0]:
            self.last = (list(request["data"]), request["result"])
        request["result"] = self.last[1]


@breaks("extra-keys-pass")
class TakesTheFirstKey(Perfect):
    def one(self, request):
        self.read(request)
        request["result"] = next(iter(request.values())) * self.factor


class Sized(Perfect.Options):
    sizes: list[int] = Field([1], description="Sizes, in items.")


@breaks("options-kept")
class AddsToItsOptions(Perfect):
    class Options(Sized):
        """How much."""

    def init(self, options, context):
        super().init(options, context)
        options.sizes.append(2)


@breaks("options-kept")
class WritesItsOptions(Perfect):
    class Options(Sized):
        """How much."""

    def init(self, options, context):
        super().init(options, context)
        object.__setattr__(options, "sizes", [2])
