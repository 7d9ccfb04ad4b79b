"""Backends that fall over some wrong values, or over right ones in another form."""

from __future__ import annotations

import ctypes

import numpy as np

import headrace
from conformance_shelf.labels import breaks
from conformance_shelf.perfect import Perfect
from headrace.errors import InputError

_FLAT = 1


def number_for(strange):
    """Return a `read` that takes some strange values for 0, as `strange` tells them."""

    def read(self, request):
        if "data" in request and strange(request["data"]):
            return 0
        return Perfect.read(self, request)

    return read


def crash_for(strange):
    """Return a `read` that fails in its own way over some strange values."""

    def read(self, request):
        if "data" in request and strange(request["data"]):
            raise TypeError("unsupported operand")
        return Perfect.read(self, request)

    return read


@breaks("wrong-type")
class TakesText(Perfect):
    read = number_for(lambda value: isinstance(value, str))


@breaks("wrong-type")
class TakesNone(Perfect):
    read = number_for(lambda value: value is None)


@breaks("wrong-type")
class TakesEmptyDicts(Perfect):
    read = number_for(lambda value: isinstance(value, dict) and not value)


@breaks("wrong-type")
class FailsOnNone(Perfect):
    read = crash_for(lambda value: value is None)


@breaks("wrong-type")
class FailsOnBytes(Perfect):
    read = crash_for(lambda value: isinstance(value, bytes))


@breaks("wrong-shape")
class FailsOnAListOfOne(Perfect):
    read = crash_for(lambda value: isinstance(value, list) and [*map(type, value)] == [list])


class Doubling(headrace.Backend):
    """Double an array.

    Reads:
        data: ``float32`` or ``uint8`` ``[H, W]``.
    Writes:
        result: The same dtype and shape.
    Batch:
        1 or more.

    Raises:
        InputError: ``data`` is missing or no such array.
    Source:
        Own.
    """

    rerun = True

    def right(self, value):
        """Tell whether a value is what the docstring says."""
        return value.ndim == len("HW") and value.dtype in (np.float32, np.uint8)

    def read(self, request):
        value = request.get("data")
        if not isinstance(value, np.ndarray) or not self.right(value):
            raise InputError("no array [H, W]", key="data")
        return value

    def one(self, request):
        value = self.read(request)
        request["result"] = value * value.dtype.type(2)

    forward = Perfect.forward


def array_item(self, k):
    return {"data": np.arange(12, dtype=np.float32).reshape(3, 4) + k}


@breaks("wrong-shape", make_item=array_item)
class TakesOneAxisMore(Doubling):
    def right(self, value):
        return super().right(value[0] if value.ndim == len("NHW") else value)


@breaks("wrong-shape", make_item=array_item)
class TakesOneAxisLess(Doubling):
    def right(self, value):
        return super().right(value[None] if value.ndim == _FLAT else value)


@breaks("wrong-shape", make_item=array_item)
class FailsOnOneAxisLess(Doubling):
    def right(self, value):
        return value.shape[1] > 0 and super().right(value)


@breaks("wrong-shape", make_item=array_item)
class FailsOnNoRows(Doubling):
    def one(self, request):
        self.read(request).max()
        super().one(request)


@breaks("wrong-dtype", make_item=array_item)
class TakesDoubles(Doubling):
    def right(self, value):
        return super().right(value.astype("float32") if value.dtype == np.float64 else value)


@breaks("wrong-dtype", make_item=array_item)
class FailsOnBools(Doubling):
    def right(self, value):
        if value.dtype == np.bool_:
            raise TypeError("numpy boolean subtract")
        return super().right(value)


@breaks("wrong-dtype", make_item=array_item)
class TakesTexts(Doubling):
    def read(self, request):
        value = request.get("data")
        if isinstance(value, np.ndarray) and value.dtype.kind == "U":
            request = {"data": np.zeros((1, 1), "float32")}
        return super().read(request)


@breaks("views-read", make_item=array_item)
class ReadsMemoryInOrder(Doubling):
    def one(self, request):
        value = self.read(request)
        flat = np.frombuffer(value.tobytes("A"), value.dtype)
        request["result"] = flat.reshape(value.shape) * value.dtype.type(2)


@breaks("views-read", make_item=array_item)
class WritesAndPutsBack(Doubling):
    def one(self, request):
        value = self.read(request)
        value *= 2
        request["result"] = value.copy()
        value //= 2


@breaks("docstring-results", make_item=array_item)
class DocumentsAnotherDtype(Doubling):
    __doc__ = (Doubling.__doc__ or "").replace("The same dtype and shape.", "``uint8 [H, W]``.")


@breaks("docstring-results", make_item=array_item)
class DocumentsAnotherShape(Doubling):
    __doc__ = (Doubling.__doc__ or "").replace("The same dtype and shape.", "``[H, W, 3]``.")


@breaks("docstring-results", make_item=array_item)
class WritesAListForAnArray(Doubling):
    __doc__ = (Doubling.__doc__ or "").replace("The same dtype and shape.", "``float32 [H, W]``.")

    def one(self, request):
        super().one(request)
        request["result"] = request["result"].tolist()


@breaks("docstring-results", make_item=array_item)
class WritesAGeneratorForAnArray(WritesAListForAnArray):
    def one(self, request):
        super().one(request)
        request["result"] = iter(request["result"])


@breaks("inputs-kept", make_item=array_item)
class DoublesLargeBatchesInPlace(Doubling):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in batch if len(batch) > 8 and not outcomes else ():
            np.multiply(request["data"], 2, out=request["data"])
        return outcomes


@breaks("bad-item-alone", make_item=array_item)
class DoublesInPlaceBesideABadOne(Doubling):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in batch if outcomes else ():
            if "result" in request:
                np.multiply(request["data"], 2, out=request["data"])
        return outcomes


@breaks("requests-released", make_item=array_item)
class KeepsEveryArray(Doubling):
    def init(self, options, context):
        self.kept = []

    def one(self, request):
        super().one(request)
        self.kept.append(request["data"])


@breaks("requests-released")
class KeepsEveryRequest(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.kept = []

    def one(self, request):
        super().one(request)
        self.kept.append(request)


@breaks("requests-released")
class RemembersEveryAnswer(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.answers = {}

    def one(self, request):
        super().one(request)
        request["result"] = self.answers.setdefault(request["data"], request["result"])


@breaks("requests-released")
class LeaksInC(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.c = ctypes.CDLL(None)
        self.c.malloc.restype = ctypes.c_void_p

    def one(self, request):
        super().one(request)
        ctypes.memset(self.c.malloc(20_000), 1, 20_000)


@breaks("requests-released")
class KeepsTheSizeOfEveryBatch(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.sizes = []

    def forward(self, batch):
        self.sizes.append(len(batch))
        return super().forward(batch)


@breaks("extra-keys-pass")
class CopiesTheListsOfOthers(Perfect):
    def one(self, request):
        super().one(request)
        request.update({key: [*one] for key, one in request.items() if isinstance(one, list)})


@breaks("requests-released")
class KeepsEveryBadRequest(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.kept = []

    def read(self, request):
        try:
            return super().read(request)
        except InputError:
            self.kept.append(dict(request))
            raise


@breaks("bad-item-alone")
class TellsOnlyTheFirstError(Perfect):
    def forward(self, batch):
        outcomes = super().forward(batch)
        for place, (request, error) in enumerate(zip(batch, outcomes or (), strict=False)):
            if error is not None and any(outcomes[:place]):
                outcomes[place], request["result"] = None, 0
        return outcomes


@breaks("bad-item-alone")
class FailsWhereAllAreBad(Perfect):
    rerun = False

    def forward(self, batch):
        outcomes = super().forward(batch)
        if len(batch) > 1 and not any("result" in request for request in batch):
            raise ZeroDivisionError("the mean of no numbers")
        return outcomes
