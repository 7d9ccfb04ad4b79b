"""Backends that do one thing wrong with imports, lives, threads, or what they leave behind."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import os
import sys
import threading
import time
import warnings

import headrace
from conformance_shelf.labels import breaks
from conformance_shelf.perfect import Perfect

COLOR = contextvars.ContextVar("COLOR")


class NeverEnds(Perfect):
    """Not judged as a whole, since nothing ends it: what a fresh process says of it is."""

    def init(self, options, context):
        super().init(options, context)
        self.stop = threading.Event()
        threading.Thread(target=self.stop.wait).start()

    def close(self):
        self.stop.wait()


class NeverBuilds(Perfect):
    """Not judged as a whole either."""

    def init(self, options, context):
        threading.Event().wait()


class EndsTheProcess(Perfect):
    """Not judged as a whole either."""

    def init(self, options, context):
        os._exit(3)


for cls in (NeverEnds, NeverBuilds, EndsTheProcess):
    headrace.register(cls.__name__, cls, replace=True)


@breaks("missing-library")
class HidesWhatIsMissing(Perfect):
    def init(self, options, context):
        super().init(options, context)
        try:
            import pytest
        except ImportError:
            raise RuntimeError("something is not installed") from None
        self.library = pytest


@breaks("life-cycle-again")
class OnlyOnce(Perfect):
    made = 0

    def init(self, options, context):
        super().init(options, context)
        type(self).made += 1
        if self.made > 1:
            raise RuntimeError("there can be only one")


@breaks("life-cycle-again")
class EveryLifeAddsUp(Perfect):
    made = 0

    def init(self, options, context):
        type(self).made += 1
        self.factor = options.factor * self.made


@breaks("life-cycle-again")
class CloseFails(Perfect):
    def close(self):
        raise RuntimeError("cannot close")


@breaks("life-cycle-again")
class CloseEndsTheProcess(Perfect):
    def close(self):
        sys.exit(3)


@breaks("closes-unused")
class ClosesWhatItNeverOpened(Perfect):
    def one(self, request):
        super().one(request)
        self.session = "open"

    def close(self):
        del self.session


@breaks("describe")
class DescribesNoDict(Perfect):
    def describe(self):
        return ["factor", self.factor]


@breaks("describe")
class DescribesAnObject(Perfect):
    def describe(self):
        return {"factor": {self.factor}}


@breaks("threads-in-turn")
class KeepsItsFactorInItsThread(Perfect):
    def init(self, options, context):
        self.mine = threading.local()
        self.mine.factor = options.factor

    def one(self, request):
        request["result"] = self.read(request) * getattr(self.mine, "factor", 0)


@breaks("threads-in-turn")
class ClosesInItsThreadOnly(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.ident = threading.get_ident()
        self.turns = 0

    def one(self, request):
        super().one(request)
        self.turns += 1

    def close(self):
        if self.turns and threading.get_ident() != self.ident:
            raise RuntimeError("close runs in another thread than init")


@breaks("instances-agree")
class SharesItsFactor(Perfect):
    def init(self, options, context):
        type(self).shared = options.factor + context.instance_index

    def one(self, request):
        request["result"] = self.read(request) * self.shared


@breaks("instances-agree")
class SharesItsProductWithinALine(Perfect):
    shared = [0.0]  # noqa: RUF012
    """Of all instances."""

    def one(self, request):
        request["result"] = (
            self.shared.__setitem__(0, self.read(request) * self.factor) or self.shared[0]
        )


@breaks("instances-help")
class WaitsForAllOthers(Perfect):
    lock = threading.Lock()
    """Of all instances."""

    def forward(self, batch):
        with self.lock:
            time.sleep(0.003)  # stands for a computation
            return super().forward(batch)


@breaks("instances-agree")
class TheSecondIsAnother(Perfect):
    def init(self, options, context):
        self.factor = options.factor + context.instance_index


@breaks("thread-state-kept")
class LeavesAContextVariable(Perfect):
    def forward(self, batch):
        COLOR.set("red")
        return super().forward(batch)


@breaks("thread-state-kept")
class LeavesAnotherPrecision(Perfect):
    def forward(self, batch):
        decimal.getcontext().prec += 1
        return super().forward(batch)


@breaks("thread-state-kept")
class LeavesAnEventLoop(Perfect):
    def forward(self, batch):
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.close()
        return super().forward(batch)


@breaks("threads-left")
class LeavesAThread(Perfect):
    stop = threading.Event()
    """Set by the test, so that the threads end after all."""

    def init(self, options, context):
        super().init(options, context)
        threading.Thread(target=self.stop.wait, name="left-behind", daemon=True).start()


@breaks("files-left")
class LeavesAFile(Perfect):
    files = []  # noqa: RUF012
    """Closed by the test."""

    def init(self, options, context):
        super().init(options, context)
        self.files.append(open(os.devnull, "rb"))  # noqa: PTH123, SIM115


@breaks("files-left")
class LeavesADescriptor(Perfect):
    descriptors = []  # noqa: RUF012
    """Closed by the test."""

    def init(self, options, context):
        super().init(options, context)
        self.descriptors.append(os.open(os.devnull, os.O_RDONLY))


@breaks("warnings-left")
class LeavesItsFileToTheCollector(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.file = open(os.devnull, "rb")  # noqa: PTH123, SIM115


@breaks("warnings-left")
class WarnsAtEveryBatch(Perfect):
    def forward(self, batch):
        warnings.warn("this will be slow", UserWarning, stacklevel=1)
        return super().forward(batch)


@breaks("device-memory-left")
class LeavesDeviceMemory(Perfect):
    allocated = 0
    """What a fake torch tells; set back by the test."""

    def init(self, options, context):
        super().init(options, context)
        type(self).allocated += 1 << 20


@breaks("builds")
class OwnsItsThreadTooLate(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.owns_thread = True
