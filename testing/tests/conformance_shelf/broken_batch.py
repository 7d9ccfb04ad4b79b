"""Backends that do one thing wrong with requests that are right."""

from __future__ import annotations

import array
import collections
import inspect

from pydantic import Field

from conformance_shelf.labels import breaks, documented
from conformance_shelf.perfect import GOOD_TYPES, Perfect
from headrace.errors import InputError

GOOD = inspect.getdoc(Perfect) or ""


@breaks("builds")
class InitFails(Perfect):
    def init(self, options, context):
        raise OSError("no such model")


@breaks("builds")
class WarmUpFails(Perfect):
    def warm_up(self):
        raise RuntimeError("too cold")


@breaks("builds")
class InitLeavesNoRange(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.min, self.max = 4, 2


@breaks("outcomes")
class ReturnsTrue(Perfect):
    def forward(self, batch):
        super().forward(batch)
        return True


@breaks("outcomes")
class ReturnsResults(Perfect):
    def forward(self, batch):
        super().forward(batch)
        return [request.get("result") for request in batch]


@breaks("outcomes")
class ReturnsOnlyErrors(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        return [one for one in outcomes if one is not None] if outcomes else None


@breaks("outcomes")
class ReturnsTexts(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        return [one and str(one) for one in outcomes] if outcomes else None


@breaks("runs")
class ForgetsTheLast(Perfect):
    def forward(self, batch):
        return super().forward(batch[:-1]) if len(batch) > 1 else super().forward(batch)


@breaks("runs")
class RefusesWhatIsRight(Perfect):
    def one(self, request):
        raise InputError("not today", key="data")


@breaks("batch-list-kept")
class EmptiesTheList(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        batch.clear()
        return outcomes


@breaks("batch-list-kept")
class SortsTheList(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        batch.reverse()
        return outcomes


@breaks("batch-list-kept")
class SortsTheListBySize(Perfect):
    def forward(self, batch):
        if all(type(request.get("data")) in GOOD_TYPES for request in batch):
            batch.sort(key=lambda request: request["data"])
        return super().forward(batch)


@breaks("empty-batch")
class GivesAListForNothing(Perfect):
    def __call__(self, batch):
        return super().__call__(batch) if batch else []


@breaks("empty-batch")
class RunsNothing(Perfect):
    def __call__(self, batch):
        return super().__call__(batch) if batch else self.forward([])


@breaks("errors-returned")
class RaisesTheFirstError(Perfect):
    def __call__(self, batch):
        outcomes = super().__call__(batch)
        for one in outcomes or ():
            if one is not None:
                raise one
        return outcomes


@breaks("errors-returned")
class EndsTheThread(Perfect):
    def one(self, request):
        if "data" not in request:
            raise SystemExit("no data")
        super().one(request)


@breaks("called-in-order")
class RunsAtAnyTime(Perfect):
    def __call__(self, batch):
        return self.forward(list(batch)) if batch else None


@breaks("range")
class FailsInTheMiddleOfItsRange(Perfect):
    rerun = False
    max = 12
    __doc__ = GOOD.replace("1 or more", "1 to 12")

    def forward(self, batch):
        if len(batch) > 5:
            raise MemoryError("too many")
        return super().forward(batch)


@breaks("range")
class IsSavedByRerun(FailsInTheMiddleOfItsRange):
    rerun = True


@breaks("range")
class UnboundedInWords(Perfect):
    rerun = False

    def forward(self, batch):
        if len(batch) > 10:
            raise MemoryError("too many")
        return super().forward(batch)


@breaks("range")
class RunsAboveItsMax(Perfect):
    max = 4
    __doc__ = GOOD.replace("1 or more", "1 to 4")

    def __call__(self, batch):
        if len(batch) <= 4:
            return super().__call__(batch)
        for start in range(0, len(batch), 4):
            super().__call__(batch[start : start + 4])
        return None


@breaks("range")
class CannotDoOne(Perfect):
    rerun = False

    def forward(self, batch):
        if len(batch) == 1:
            raise ValueError("too few")
        return super().forward(batch)


@breaks("range")
class FailsBelowItsMax(Perfect):
    rerun = False
    max = 100
    __doc__ = GOOD.replace("1 or more", "1 to 100")

    def forward(self, batch):
        if len(batch) == 100:
            raise MemoryError("too many")
        return super().forward(batch)


@breaks("batch-equals-items")
class DependsOnNeighbours(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        most = max(request.get("result", 0) for request in batch)
        for request in batch:
            if "result" in request:
                request["result"] /= most or 1
        return outcomes


@breaks("right-answers", expected=lambda self, k: (k + 1) * 2.0)
class AddsOne(Perfect):
    def one(self, request):
        request["result"] = self.read(request) * self.factor + 1


@breaks("same-later")
class CountsTo30000(Perfect):
    answered = 0

    def one(self, request):
        super().one(request)
        self.answered += 1
        if self.answered > 30_000:
            request["result"] = 0.0


@breaks("options-used")
class IgnoresAnOption(Perfect):
    class Options(Perfect.Options):
        positional = ()
        added: float = Field(0.0, description="What is added to the product (no unit).")


@breaks("options-used")
class PutsAnOptionAway(Perfect):
    class Options(Perfect.Options):
        positional = ()
        subtracted: float = Field(0.0, description="What the product lacks (no unit).")

    def init(self, options, context):
        super().init(options, context)
        self.subtracted = options.subtracted


@breaks("order-kept")
class SortsResults(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        good = [request for request in batch if "result" in request]
        for request, result in zip(good, sorted(r["result"] for r in good), strict=True):
            request["result"] = result
        return outcomes


lists = {"make_item": lambda self, k: {"data": [k + 3, k + 1, k + 2]}}


@documented(GOOD.replace("Multiply a number.", "Sort numbers.").replace("A number", "A list"))
class Sorting(Perfect):
    def read(self, request):
        if "data" not in request:
            raise InputError("no list", key="data")
        if type(request["data"]) is not list or any(type(n) is not int for n in request["data"]):
            raise InputError("no list of numbers", key="data")
        return request["data"]

    def one(self, request):
        request["result"] = [n * self.factor for n in sorted(self.read(request))]


@breaks("inputs-kept", **lists)
class SortsInPlace(Sorting):
    def one(self, request):
        super().one(request)
        request["data"].sort()


@breaks("results-kept", **lists)
class UsesItsBufferAgain(Sorting):
    def init(self, options, context):
        super().init(options, context)
        self.buffers = [[] for _ in range(64)]

    def forward(self, batch):
        outcomes = super().forward(batch)
        for buffer, request in zip(self.buffers, batch, strict=False):
            if "result" in request:
                buffer[:] = request["result"]
                request["result"] = buffer
        return outcomes


@breaks("results-kept", **lists)
class CloseFreesResults(Sorting):
    def init(self, options, context):
        super().init(options, context)
        self.given = collections.deque(maxlen=256)

    def one(self, request):
        super().one(request)
        self.given.append(request["result"])

    def close(self):
        for result in self.given:
            result.clear()


class Vector:
    """An array of one number, in memory that it does not own."""

    dtype, shape, nbytes = "float64", (1,), 8

    def __init__(self, memory, number):
        self.memory, memory[0] = memory, number

    def data_ptr(self):
        return self.memory.buffer_info()[0]

    def tolist(self):
        return self.memory.tolist()


@breaks("results-kept")
class KeepsABufferPerNumber(Perfect):
    """Multiply a number, into memory that is used again for the same number.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``, an array ``float64 [1]``.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    def init(self, options, context):
        super().init(options, context)
        self.buffers = {}

    def one(self, request):
        super().one(request)
        memory = self.buffers.setdefault(request["data"] % 100, array.array("d", [0.0]))
        request["result"] = Vector(memory, request["result"])


# Keys.


@breaks("reads", make_item=lambda self, k: {"data": k + 1, "scale": 3})
class ReadsAnUndeclaredKey(Perfect):
    def one(self, request):
        request["result"] = self.read(request) * request.get("scale", 1)


@breaks("reads", make_item=lambda self, k: {"data": k + 1, "scale": 3})
class ReadsAnUndeclaredKeyOfACopy(Perfect):
    def one(self, request):
        everything = dict(request)
        request["result"] = self.read(request) * everything.get("scale", 1)


@breaks("reads", make_item=lambda self, k: {"data": k + 1, "scale": 3})
class ReadsAnUndeclaredKeyInBatches(Perfect):
    def forward(self, batch):
        if len(batch) > 1:
            any(request.get("scale") for request in batch)
        return super().forward(batch)


@breaks("reads", make_item=lambda self, k: {"data": k + 1, "mask": 1})
class DeclaresAKeyItNeverReads(Perfect):
    reads = ("data", "mask")
    __doc__ = GOOD.replace("Writes:", "    mask: Anything.\nWrites:")


@breaks("writes")
class WritesAnUndeclaredKey(Perfect):
    def one(self, request):
        super().one(request)
        request["seen"] = True


@breaks("writes")
class DeclaresAKeyItNeverWrites(Perfect):
    writes = ("result", "score")
    __doc__ = GOOD.replace("Batch:", "    score: A number.\nBatch:")


WITH_SCORE = GOOD.replace("Batch:", "    score: Twice the number.\nBatch:")


@breaks("writes")
class WritesAKeyAloneOnly(Perfect):
    writes = ("result", "score")
    __doc__ = WITH_SCORE

    def forward(self, batch):
        outcomes = super().forward(batch)
        if len(batch) == 1 and "result" in batch[0]:
            batch[0]["score"] = 2 * batch[0]["data"]
        return outcomes


@breaks("writes")
class MixesUpAnotherKey(Perfect):
    writes = ("result", "score")
    __doc__ = WITH_SCORE

    def forward(self, batch):
        outcomes = super().forward(batch)
        good = [request for request in batch if "result" in request]
        for request, other in zip(good, reversed(good), strict=True):
            request["score"] = 2 * other["data"]
        return outcomes


@breaks("writes")
class TakesDataAway(Perfect):
    rerun = False

    def one(self, request):
        super().one(request)
        del request["data"]


@breaks("extra-keys-pass")
class CountsKeys(Perfect):
    def one(self, request):
        super().one(request)
        request["result"] += 100 * (len(request) > 2)
