"""Backends that keep every rule, of as many kinds as the contract has."""

from __future__ import annotations

import functools
import threading
from typing import Any, TypedDict

from pydantic import Field
from typing_extensions import NotRequired  # noqa: TC002 - read at run time

import headrace
from conformance_shelf.device import Device, on_device
from headrace.errors import InputError
from headrace_testing import BackendConformance

GOOD_TYPES = (int, float)


class Perfect(headrace.Backend):
    """Multiply a number.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``.
    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    class Options(headrace.Options):
        """How much."""

        positional = ("factor",)
        factor: float = Field(2.0, description="What numbers are multiplied by (no unit).")

    rerun = True
    factor: float = 1.0

    def init(self, options: Any, context: headrace.InitContext) -> None:
        self.factor = options.factor

    def read(self, request):
        if "data" not in request:
            raise InputError("the request has no number", key="data", got="nothing")
        if type(request["data"]) not in GOOD_TYPES:
            kind = type(request["data"]).__name__
            raise InputError("no number", key="data", expected="a number", got=kind)
        return request["data"]

    def one(self, request):
        request["result"] = self.read(request) * self.factor

    def forward(self, batch):
        outcomes: list[Exception | None] = [None] * len(batch)
        for place, request in enumerate(batch):
            try:
                self.one(request)
            except InputError as error:
                outcomes[place] = error
        return outcomes if any(outcomes) else None


class NumbersConformance(BackendConformance):
    def make_item(self, k):
        return {"data": k + 1}


class PerfectConformance(NumbersConformance):
    expression = "Perfect(3)"
    times = 3.0

    def expected(self, k):
        return (k + 1) * self.times


class RemembersSome(Perfect):
    """Multiply a number, or give the product that it has remembered.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    def init(self, options, context):
        super().init(options, context)
        self.product = functools.lru_cache(maxsize=1000)(lambda number: number * options.factor)

    def one(self, request):
        request["result"] = self.product(self.read(request))


class RemembersSomeConformance(PerfectConformance):
    expression = "RemembersSome"
    times = 2.0


class OneAtATime(Perfect):
    """Multiply a number, one at a time.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``.
    Batch:
        1

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    max = 1

    def read(self, request):
        try:
            return super().read(request)
        except InputError:
            raise InputError("data is no number") from None  # which names the key in its text


class OneAtATimeConformance(PerfectConformance):
    expression = "OneAtATime"
    times = 2.0


class Fixed(Perfect):
    """Multiply numbers in batches of 2 to 3.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``.
    Batch:
        2 to 3

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    min, max = 2, 3


class FixedConformance(PerfectConformance):
    expression = "Fixed"
    times = 2.0


class RangeByInit(Perfect):
    """Multiply numbers in batches whose range is set by an option.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``.
    Batch:
        1 or more where ``most`` is none, else 1 to ``most``.

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    class Options(Perfect.Options):
        """How much, and how many at once."""

        most: int | None = Field(None, ge=1, description="Most items of a batch (a number).")

    def init(self, options, context):
        super().init(options, context)
        self.max = options.most


class RangeByInitConformance(PerfectConformance):
    expression = "RangeByInit(most=3)"
    times = 2.0


class Rows(Perfect):
    """Sum lists of numbers; a request weighs as many as it has rows.

    Reads:
        data: A list of numbers.
        request_size: How many numbers, 1 where it is missing.
    Writes:
        result: Their sum times ``factor``.
    Batch:
        1 to 5

    Raises:
        InputError: ``data`` is missing or no such list.
    Source:
        Own.
    """

    max = 5
    reads = ("data", "request_size")

    def read(self, request):
        if "data" not in request:
            raise InputError("the request has no numbers", key="data", got="nothing")
        rows = request["data"]
        if type(rows) is not list or any(type(row) is not int for row in rows):
            raise InputError("no list of numbers", key="data")
        if len(rows) != request.get("request_size", 1):
            raise InputError("not as many as request_size", key="data")
        return sum(rows)


class RowsConformance(BackendConformance):
    expression = "Rows"

    def make_item(self, k):
        size = 1 + k % 2
        return {"data": [k + 1] * size, "request_size": size}

    def expected(self, k):
        return (k + 1) * (1 + k % 2) * 2.0


class OwnThread(Perfect):
    """Multiply a number in the one thread that began with it.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    owns_thread = True

    def init(self, options, context):
        super().init(options, context)
        self.mine = threading.local()
        self.mine.factor = options.factor

    def one(self, request):
        request["result"] = self.read(request) * self.mine.factor

    def close(self):
        del self.mine.factor


class OwnThreadConformance(PerfectConformance):
    expression = "OwnThread(factor=4)"
    times = 4.0


class WithAThread(Perfect):
    """Multiply a number, with a thread beside it that ends in ``close``.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    def init(self, options, context):
        super().init(options, context)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.stop.wait)  # no daemon: exit waits for it
        self.thread.start()

    def close(self):
        self.stop.set()
        self.thread.join()


class WithAThreadConformance(PerfectConformance):
    expression = "WithAThread"
    times = 2.0


class OnADevice(Perfect):
    """Multiply a number on a device, which is waited for at the end of the batch.

    Reads:
        data: A number, int or float.
    Writes:
        result: The number times ``factor``, ``float64 [1]`` on the device.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    def init(self, options, context):
        super().init(options, context)
        self.device = Device()
        self.finish(context)

    def finish(self, context):
        context.batch.at_end(self.device.wait)

    def memory(self, number):
        return on_device(0.0)

    def one(self, request):
        number = self.read(request)
        result = request["result"] = self.memory(number)
        self.device.later(lambda: result.memory.__setitem__(0, number * self.factor))


class OnADeviceConformance(PerfectConformance):
    expression = "OnADevice"

    def expected(self, k):
        return on_device((k + 1) * 2.0)


class OnADeviceAlone(OnADevice):
    owns_thread = True


class OnADeviceAloneConformance(OnADeviceConformance):
    expression = "OnADeviceAlone"


class Passing(headrace.Backend):
    """Return what came.

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing.
    Source:
        Own.
    """

    rerun = True

    def forward(self, batch):
        for request in batch:
            if "data" not in request:
                raise InputError("the request has no data", key="data")
            request["result"] = request["data"]


class PassingConformance(BackendConformance):
    expression = "Passing"

    def make_item(self, k):
        return {"data": [k, f"text {k}", b"bytes", {"k": float("nan")}, iter([k])]}

    def expected(self, k):
        return self.make_item(k)["data"]


class ScaleIn(TypedDict):
    """What `Scale` reads."""

    data: float
    factor: float
    offset: NotRequired[float]


class ScaleOut(TypedDict):
    """What `Scale` writes."""

    result: float
    shifted: NotRequired[bool]


class Scale(Perfect):
    """Multiply a number by one of its request, and add another if there is one.

    Reads:
        data, factor: Numbers, int or float.
        offset: A number, or not there.
    Writes:
        result: ``data * factor + offset``.
        shifted: True, where there was an offset.
    Batch:
        1 or more

    Raises:
        InputError: A key is missing or holds no number.
    Source:
        Own.
    """

    reads = ScaleIn
    writes = ScaleOut

    class Options(headrace.Options):
        """None."""

    def init(self, options, context):
        pass

    def one(self, request):
        for key in ("data", "factor"):
            if key not in request:
                raise InputError("a number is missing", key=key)
        numbers = {key: request.get(key, 0) for key in ("data", "factor", "offset")}
        for key, value in numbers.items():
            if type(value) not in (int, float):
                raise InputError("no number", key=key, got=type(value).__name__)
        request["result"] = numbers["data"] * numbers["factor"] + numbers["offset"]
        if numbers["offset"]:
            request["shifted"] = True


class ScaleConformance(BackendConformance):
    expression = "Scale"

    def make_item(self, k):
        item = {"data": k + 1, "factor": 0.5}
        return {**item, "offset": k} if k % 2 else item

    def expected(self, k):
        return (k + 1) * 0.5 + k * (k % 2)


class ByKey(Perfect):
    """Multiply the number under a key that an option names, and say so under another.

    Reads:
        number: A number, int or float; the option ``key`` names another key.
    Writes:
        result: The number times ``factor``.
        done: True; the option ``flag`` names another key.
    Batch:
        1 or more

    Raises:
        InputError: The number is missing or none.
    Source:
        Own.
    """

    class Options(Perfect.Options):
        """How much, and where."""

        key: str = Field("number", description="Key of the number.")
        flag: str = Field("done", description="Key of what is said.")

    reads = ("{key}",)
    writes = ("result", "{flag}")

    def init(self, options, context):
        super().init(options, context)
        self.key, self.flag = options.key, options.flag

    def one(self, request):
        if self.key not in request:
            raise InputError("the request has no number", key=self.key)
        number = request[self.key]
        if type(number) not in (int, float):
            raise InputError("no number", key=self.key, got=type(number).__name__)
        request["result"], request[self.flag] = number * self.factor, True


class ByKeyConformance(BackendConformance):
    expression = "ByKey(key=price)"

    def make_item(self, k):
        return {"price": k + 1}  # no `data`: nothing reads it

    def expected(self, k):
        return (k + 1) * 2.0


class Twice(headrace.Backend):
    """Run what is inside, then again on its result.

    Reads:
        What is inside reads.
    Writes:
        What is inside writes.
    Batch:
        That of what is inside.

    Raises:
        What is inside raises.
    Source:
        Own.
    """

    takes = 1
    rerun = True

    def init(self, options, context):
        (self.child,) = context.children

    def forward(self, batch):
        first = self.child(batch) or [None] * len(batch)
        alive = [place for place, outcome in enumerate(first) if outcome is None]
        came = [batch[place]["data"] for place in alive]
        for place in alive:
            batch[place]["data"] = batch[place].pop("result")
        second = self.child([batch[place] for place in alive]) or [None] * len(alive)
        for place, outcome, data in zip(alive, second, came, strict=True):
            first[place] = outcome
            batch[place]["data"] = data
        return first if any(first) else None


class TwiceConformance(PerfectConformance):
    expression = "Twice[Perfect(3)]"
    times = 9.0


class Around(headrace.Backend):
    """Run a child, and negate its result.

    Reads:
        What the child reads.
    Writes:
        result: The result of the child, negated.
    Batch:
        That of the child.

    Raises:
        What the child raises.
    Source:
        Own.
    """

    takes = 1
    rerun = True

    def init(self, options, context):
        (self.child,) = context.children

    def forward(self, batch):
        outcomes = self.child(batch)
        for place, request in enumerate(batch):
            if outcomes is None or outcomes[place] is None:
                request["result"] = -request["result"]
        return outcomes


class AroundConformance(PerfectConformance):
    expression = "Around[Perfect]"
    times = -2.0


class ReadsUnwatched(Perfect):
    """Multiply a number, which is read past the request's own methods, as some libraries do.

    Reads:
        data: A number, int or float.
    Writes:
        result: A complex number; the last digits depend on the batch.
    Batch:
        1 or more

    Raises:
        InputError: ``data`` is missing or no number.
    Source:
        Own.
    """

    def read(self, request):
        return super().read({"data": dict.get(request, "data")})

    def forward(self, batch):
        outcomes = super().forward(batch)
        for request in batch:
            if "result" in request:
                request["result"] *= complex(1, 1e-12 * len(batch))
        return outcomes


class ReadsUnwatchedConformance(PerfectConformance):
    expression = "ReadsUnwatched"

    def expected(self, k):
        return complex((k + 1) * 2)


CONFORMANCE = [
    PerfectConformance,
    RemembersSomeConformance,
    OneAtATimeConformance,
    FixedConformance,
    RangeByInitConformance,
    RowsConformance,
    OwnThreadConformance,
    WithAThreadConformance,
    OnADeviceConformance,
    OnADeviceAloneConformance,
    PassingConformance,
    ScaleConformance,
    ByKeyConformance,
    TwiceConformance,
    AroundConformance,
    ReadsUnwatchedConformance,
]

for cls in (
    *(
        Perfect,
        RemembersSome,
        OneAtATime,
        Fixed,
        RangeByInit,
        Rows,
        OwnThread,
        Passing,
        Scale,
        ByKey,
        Twice,
    ),
    *(Around, WithAThread, OnADevice, OnADeviceAlone, ReadsUnwatched),
):
    headrace.register(cls.__name__, cls, replace=True)
