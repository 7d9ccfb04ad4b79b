"""Backends that change the process or the thread they live in, or read and write keys now and then."""

from __future__ import annotations

import asyncio
import builtins
import contextvars
import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings

import numpy as np

from conformance_shelf.labels import breaks
from conformance_shelf.perfect import Perfect
from headrace.errors import InputError

GAIN = contextvars.ContextVar("gain", default=1)


@breaks("process-state-kept")
class SetsAVariable(Perfect):
    def init(self, options, context):
        super().init(options, context)
        os.environ["HEADRACE_SHELF"] = "1"


@breaks("process-state-kept")
class SetsAVariableLater(Perfect):
    def forward(self, batch):
        os.environ["HEADRACE_SHELF"] = "2"
        return super().forward(batch)


@breaks("process-state-kept")
class GoesElsewhere(Perfect):
    def forward(self, batch):
        os.chdir("/")
        return super().forward(batch)


@breaks("process-state-kept")
class ConfiguresLogging(Perfect):
    def init(self, options, context):
        super().init(options, context)
        logging.getLogger().addHandler(logging.NullHandler())


@breaks("process-state-kept")
class FiltersWarnings(Perfect):
    def init(self, options, context):
        super().init(options, context)
        warnings.simplefilter("ignore")


@breaks("process-state-kept")
class StopsTheCollector(Perfect):
    def forward(self, batch):
        gc.disable()
        return super().forward(batch)


@breaks("process-state-kept")
class Prints(Perfect):
    def forward(self, batch):
        sys.stdout.write("one more batch\n")
        return super().forward(batch)


@breaks("process-state-kept")
class Seeds(Perfect):
    def forward(self, batch):
        random.seed(0)
        return super().forward(batch)


@breaks("process-state-kept")
class SeedsNumpy(Perfect):
    def init(self, options, context):
        super().init(options, context)
        np.random.seed(0)


@breaks("process-state-kept")
class IgnoresASignal(Perfect):
    def init(self, options, context):
        super().init(options, context)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


@breaks("process-state-kept")
class BlocksASignal(Perfect):
    def forward(self, batch):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        return super().forward(batch)


@breaks("thread-state-kept")
class SetsItsVariableInInit(Perfect):
    def init(self, options, context):
        super().init(options, context)
        GAIN.set(2)


@breaks("thread-state-kept")
class IgnoresErrorsOfNumpy(Perfect):
    def init(self, options, context):
        super().init(options, context)
        np.seterr(all="ignore")


@breaks("thread-state-kept")
class NamesTheThread(Perfect):
    def forward(self, batch):
        threading.current_thread().name = "mine"
        return super().forward(batch)


@breaks("thread-state-kept")
class ForgetsItsVariableWhereARequestFails(Perfect):
    def one(self, request):
        before = GAIN.set(2)
        super().one(request)
        GAIN.reset(before)


@breaks("thread-state-kept")
class IgnoresErrorsInLargeBatches(Perfect):
    def forward(self, batch):
        if len(batch) > 8:
            np.seterr(all="ignore")
        return super().forward(batch)


@breaks("instances-agree")
class SharesItsProduct(Perfect):
    product = 0
    """Of all instances."""

    def one(self, request):
        SharesItsProduct.product = self.read(request) * self.factor
        request["result"] = SharesItsProduct.product


@breaks("instances-agree")
class SharesItsList(Perfect):
    results = []  # noqa: RUF012
    """Of all instances."""

    def forward(self, batch):
        outcomes = super().forward(batch)
        self.results.clear()
        self.results.extend(request.get("result") for request in batch)
        for place, request in enumerate(batch):
            if "result" in request and place < len(self.results):
                request["result"] = self.results[place]
        return outcomes


@breaks("reads")
class ReadsAnUndeclaredKeyInLargeBatches(Perfect):
    def forward(self, batch):
        if len(batch) > 8:
            any(request.get("scale") for request in batch)
        return super().forward(batch)


@breaks("reads")
class ReadsAnUndeclaredKeyOfSomeNumbers(Perfect):
    def one(self, request):
        super().one(request)
        if request["data"] == 9:
            request["result"] *= request.get("scale", 1)


@breaks("reads")
class ReadsAnUndeclaredKeyOfBadRequests(Perfect):
    def one(self, request):
        try:
            super().one(request)
        except InputError:
            if not request.get("lenient"):
                raise


@breaks("reads")
class AsksTheKeysForAnother(Perfect):
    def one(self, request):
        super().one(request)
        request["result"] *= 1 + ("scale" in request.keys())  # noqa: SIM118


@breaks("writes")
class WritesAnUndeclaredKeyIntoBadRequests(Perfect):
    def one(self, request):
        try:
            super().one(request)
        except InputError:
            request["why"] = "no number"
            raise


@breaks("writes")
class WritesAnUndeclaredKeyInLargeBatches(Perfect):
    def forward(self, batch):
        for request in batch if len(batch) > 8 else ():
            request["seen"] = True
        return super().forward(batch)


@breaks("describe")
class DescribesNoNumber(Perfect):
    def describe(self):
        return {"factor": float("nan")}


@breaks("describe")
class DescribesHowOftenItWasAsked(Perfect):
    asked = 0

    def describe(self):
        self.asked += 1
        return {"asked": self.asked}


@breaks("describe")
class DescribesNothingAfterABadRequest(Perfect):
    bad = False

    def read(self, request):
        self.bad = self.bad or "data" not in request
        return super().read(request)

    def describe(self):
        if self.bad:
            raise RuntimeError("it is out of order")
        return {}


@breaks("docstring-batch")
class SpeaksOfSomethingElse(Perfect):
    __doc__ = (Perfect.__doc__ or "").replace("a bad one fails alone", "if one is bad, it fails")

    def init(self, options, context):
        super().init(options, context)
        self.max = 3


@breaks("process-state-kept")
class HearsAllOfHeadrace(Perfect):
    def init(self, options, context):
        super().init(options, context)
        logging.getLogger("headrace").setLevel(logging.DEBUG)


@breaks("process-state-kept")
class OpensFilesItsOwnWay(Perfect):
    def init(self, options, context):
        super().init(options, context)
        builtins.open = lambda *given: given


@breaks("process-state-kept")
class ProfilesNewThreads(Perfect):
    def init(self, options, context):
        super().init(options, context)
        threading.setprofile(lambda *event: None)


@breaks("process-state-kept")
class TalksToItself(Perfect):
    def init(self, options, context):
        super().init(options, context)
        sys.stdout = sys.stderr


@breaks("process-state-kept")
class BringsItsLoops(Perfect):
    class Policy(asyncio.DefaultEventLoopPolicy):
        pass

    def init(self, options, context):
        super().init(options, context)
        asyncio.set_event_loop_policy(self.Policy())
