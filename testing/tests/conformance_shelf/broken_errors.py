"""Backends that do one thing wrong with requests that are wrong, or with running again."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect

from conformance_shelf.labels import breaks
from conformance_shelf.perfect import GOOD_TYPES, Perfect
from headrace.errors import InputError


@breaks("missing-key")
class RaisesKeyError(Perfect):
    def one(self, request):
        request["data"]
        super().one(request)


@breaks("missing-key")
class DoesNotNameTheKey(Perfect):
    def one(self, request):
        if "data" not in request:
            raise InputError("something is missing")
        super().one(request)


@breaks("missing-key")
class TakesZeroForWhatIsMissing(Perfect):
    def one(self, request):
        if "data" in request:
            super().one(request)
        else:
            request["result"] = 0


@breaks("wrong-type")
class TakesAnything(Perfect):
    def one(self, request):
        if "data" in request and type(request["data"]) not in (*GOOD_TYPES, list, complex):
            request["result"] = 0
        else:
            super().one(request)


@breaks("wrong-type")
class FailsOnATypeItDoesNotKnow(Perfect):
    def one(self, request):
        if "data" in request and type(request["data"]) not in (*GOOD_TYPES, list, complex):
            raise TypeError("unsupported operand")
        super().one(request)


@breaks("wrong-type")
class SaysAnythingAndRefuses(Perfect):
    __doc__ = (inspect.getdoc(Perfect) or "").replace(
        "data: A number, int or float.", "data: Anything."
    )


@breaks("wrong-shape")
class UnpacksLists(Perfect):
    def read(self, request):
        value = request.get("data")
        while isinstance(value, list) and value:
            (value,) = value
        return super().read({"data": value} if "data" in request else {})


@breaks("wrong-dtype")
class DropsTheImaginaryPart(Perfect):
    def read(self, request):
        value = request.get("data")
        if isinstance(value, complex):
            return value.real
        return super().read(request)


@breaks("wrong-shape")
class BendsWhatDoesNotFit(Perfect):
    def read(self, request):
        value = request.get("data")
        while isinstance(value, list) and value:
            value = value[0]
        value = value.real if isinstance(value, complex) else value
        return super().read({"data": value} if "data" in request else {})


@breaks("missing-key")
class SwallowsWhateverIsRaised(Perfect):
    def one(self, request):
        try:
            super().one(request)
        except BaseException:
            request["result"] = None


@breaks("works-after-failure")
class RemembersFailures(Perfect):
    def one(self, request):
        try:
            super().one(request)
        except InputError:
            self.factor += 1
            raise


@breaks("bad-item-alone")
class OneSpoilsAll(Perfect):
    rerun = False

    def forward(self, batch):
        for request in batch:
            self.one(request)


@breaks("bad-item-alone")
class SkipsThoseAfterTheBadOne(Perfect):
    def forward(self, batch):
        outcomes = [None] * len(batch)
        for place, request in enumerate(batch):
            try:
                self.one(request)
            except InputError as error:
                outcomes[place] = error
                for later in batch[place + 1 :]:
                    later["result"] = None
                break
        return outcomes if any(outcomes) else None


@breaks("bad-item-alone")
class GivesErrorsBackwards(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        return outcomes[::-1] if outcomes else None


@breaks("bad-item-alone")
class GivesErrorsToTheNextInLargeBatches(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        return [outcomes[-1], *outcomes[:-1]] if outcomes and len(batch) > 32 else outcomes


def _local_error():
    class NoNumberError(InputError):
        pass

    return NoNumberError


NoNumberError = _local_error()


class HalfAnError(InputError):
    """An error that loses its key on the way."""

    def __reduce__(self):
        return HalfAnError, ("no number",)


@breaks("errors-pickle")
class RaisesALocalError(Perfect):
    def one(self, request):
        try:
            super().one(request)
        except InputError as error:
            raise NoNumberError(error.what, key=error.key) from None


@breaks("errors-pickle")
class RaisesAnErrorThatLosesItsKey(Perfect):
    def one(self, request):
        try:
            super().one(request)
        except InputError as error:
            raise HalfAnError(error.what, key=error.key) from None


UNIT = {"m": 1, "cm": 100}


@breaks("rerun", make_item=lambda self, k: {"data": k + 1, "unit": ("m", "cm")[k % 2]})
class ConvertsWhatItConverted(Perfect):
    """Convert a length to metres.

    Reads:
        data: A number.
        unit: "m" or "cm".
    Writes:
        result: The length in metres.
        unit: "m".
    Batch:
        1 or more

    Raises:
        InputError: A key is missing or wrong.
    Source:
        Own.
    """

    reads = ("data", "unit")
    writes = ("result", "unit")

    def one(self, request):
        if "unit" not in request:
            raise InputError("no unit", key="unit")
        unit = request["unit"]
        if not isinstance(unit, str) or unit not in UNIT:
            raise InputError("no such unit", key="unit")
        request["result"] = self.read(request) / UNIT[unit]
        request["unit"] = "m"


@breaks("rerun")
class CountsCalls(Perfect):
    def one(self, request):
        seen = self.__dict__.setdefault("seen", collections.deque(maxlen=64))
        again = any(request is one for one in seen)
        super().one(request)
        seen.append(request)
        request["result"] += again


@breaks("errors-returned")
class EndsAsATaskDoes(Perfect):
    def forward(self, batch):
        if any("data" not in request for request in batch):
            raise asyncio.CancelledError
        return super().forward(batch)


@breaks("interrupts-pass")
class MakesErrorsOfInterrupts(Perfect):
    def one(self, request):
        try:
            super().one(request)
        except InputError:
            raise
        except BaseException as error:
            raise InputError("no number", key="data") from error


@breaks("interrupts-pass")
class GoesOnWithoutAResult(Perfect):
    def one(self, request):
        self.read(request)
        with contextlib.suppress(BaseException):
            super().one(request)
        request.setdefault("result", None)


@breaks("interrupts-pass")
class StaysBusy(Perfect):
    busy = False

    def forward(self, batch):
        if self.busy:
            raise RuntimeError("it runs a batch already")
        self.busy = True
        outcomes = super().forward(batch)
        self.busy = False
        return outcomes
